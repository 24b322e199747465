"""The keys of the broker's own log: levels and loggers are checked when the settings are read."""

from __future__ import annotations

import pytest

from plog.runtime.loggers import is_logger
from plog.settings import BrokerSettings

STORGE, SLASH = "logger 'plog.storge' does not exist", "logger 'plog/broker' does not exist"
LEVELS = "FATAL, ERROR, WARN, INFO, DEBUG, TRACE"


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", ()),
        ("plog.storage=DEBUG", (("plog.storage", "DEBUG"),)),
        (
            " plog.cluster.controller = WARN, root=ERROR",
            (("plog.cluster.controller", "WARN"), ("root", "ERROR")),
        ),
        # A module that only some brokers import, and the standard library's.
        ("plog.ops.pages.server=TRACE", (("plog.ops.pages.server", "TRACE"),)),
        ("asyncio=FATAL", (("asyncio", "FATAL"),)),
    ],
)
def test_levels_of_loggers_are_a_list(text: str, levels: tuple[tuple[str, str], ...]) -> None:
    settings = BrokerSettings({"log.levels": text})
    assert settings.log_levels == levels
    assert BrokerSettings.KEYS["log.levels"].format(levels) == ",".join(map("=".join, levels))


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("log.format", "xml", "'xml' is not one of text, json"),
        ("log.level", "LOUD", f"'LOUD' is not a log level: use one of {LEVELS}"),
        ("log.level", "loud", f"'loud' is not a log level: use one of {LEVELS}"),
        ("log.levels", "plog=LOUD", f"'LOUD' is not a log level: use one of {LEVELS}"),
        ("log.levels", "plog", "'plog' is not LOGGER=LEVEL"),
        ("log.levels", "plog=INFO,", "'' is not LOGGER=LEVEL"),
        ("log.levels", "plog=INFO,plog=WARN", "logger 'plog' is named twice"),
        (
            "log.levels",
            "plog.storge=INFO",
            f"{STORGE}; did you mean 'plog.storage'?",
        ),
        ("log.levels", "=INFO", "logger '' does not exist"),
        (
            "log.levels",
            "plog/server=INFO",
            "logger 'plog/server' does not exist; did you mean 'plog.server'?",
        ),
    ],
)
def test_value_that_is_wrong_is_refused_with_the_reason(key: str, text: str, reason: str) -> None:
    assert BrokerSettings.faults({key: text}) == [(key, reason)]


@pytest.mark.parametrize("name", ["plog.", "kafka.log"])
def test_logger_that_does_not_exist_is_refused(name: str) -> None:
    # A suggestion may follow: it depends on the libraries that this process has imported.
    ((key, reason),) = BrokerSettings.faults({"log.levels": f"{name}=INFO"})
    assert key == "log.levels"
    assert reason.startswith(f"logger {name!r} does not exist")


def test_file_of_a_package_is_no_logger() -> None:
    assert is_logger("plog.storage")
    assert not is_logger("plog.storage.__init__")
