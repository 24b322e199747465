"""Families of messages are imported when one of their APIs is first asked for."""

import subprocess
import sys
from types import ModuleType

import pytest

from plog.protocol import framing
from plog.protocol.api_keys import ApiKey, api_name
from plog.protocol.messages import fetch
from plog.protocol.schema import BadDeclaration, Int32, Struct, field, message

LISTED = [key for keys in framing.FAMILIES.values() for key in keys]


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def test_asking_for_one_api_imports_its_family_only():
    script = """
import sys
from plog.protocol import framing
framing.request_class(1)
print([name for name in sys.modules if name.startswith("plog.protocol.messages.")])
"""
    assert run(script) == "['plog.protocol.messages.fetch']"


def test_threads_that_ask_at_once_all_get_the_class():
    script = """
import sys, threading
from plog.protocol import framing
sys.setswitchinterval(1e-6)
start, wrong = threading.Barrier(8), []
def ask(first):
    start.wait()
    for key in keys[first:] + keys[:first]:
        request, response = framing.request_class(key), framing.response_class(key)
        if request is None or response is None or request.api.key != key:
            wrong.append(key)
keys = [key for family in framing.FAMILIES.values() for key in family]
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""
    assert run(script) == "[]"


@pytest.mark.parametrize("key", LISTED, ids=lambda key: key.name)
def test_listed_api_has_the_messages_of_its_name(key):
    name = "".join(word.capitalize() for word in key.name.split("_"))
    request, response = framing.request_class(key), framing.response_class(key)
    assert request is not None
    assert response is not None
    assert (request.__name__, response.__name__) == (f"{name}Request", f"{name}Response")
    assert request.api == response.api
    assert request.api.key == key


def test_no_api_is_listed_twice():
    assert len(set(LISTED)) == len(LISTED)


@pytest.mark.parametrize("key", [-1, 52, 12345])
def test_unknown_api_has_no_messages(key):
    assert framing.request_class(key) is None
    assert framing.response_class(key) is None


def _request(key: int, versions: str = "0-1") -> type[Struct]:
    @message(api_key=key, versions=versions)
    class Request(Struct):
        number: Int32 = field("A number.")

    return Request


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({}, "does not declare"),
        ({"ARequest": _request(1)}, "does not declare"),
        ({"ARequest": _request(1), "AResponse": _request(0)}, "does not declare"),
        ({"ARequest": _request(1), "AResponse": _request(1, "0-2")}, "differ in versions"),
        ({"ARequest": _request(1), "BRequest": _request(1)}, "declared twice"),
    ],
)
def test_family_that_declares_something_else_is_refused(monkeypatch, names, words):
    module = ModuleType(fetch.__name__)
    vars(module).update(names)
    monkeypatch.setattr(framing, "_messages", {})
    monkeypatch.setitem(sys.modules, fetch.__name__, module)
    with pytest.raises(BadDeclaration, match=words):
        framing.request_class(ApiKey.FETCH)


def test_api_has_kafkas_name_or_its_number() -> None:
    assert api_name(ApiKey.API_VERSIONS) == "ApiVersions"
    assert api_name(9_999) == "9999"
