"""Hints: the words of Kafka's scripts and of kcat lead to plog's command, as the page says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from plog.cli import plog
from plog.cli.foreign_words import TOOLS, WITHOUT_COUNTERPART, Tool
from plog.cli.hints import hint, translated
from plog.cli.rule_options import PLACEHOLDER
from plog.client.producer import Producer
from plog.settings import BrokerSettings
from plog.types import TopicPartition
from tests.cli.conftest import ROOT, environment
from tests.cli.test_groups import commit
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.test_pages import CODE

PAGE = ROOT / "docs" / "OPERATIONS.md"
TITLE = "## From the commands of Kafka and kcat\n"
MEANS = "did you mean: "
NONE = "none: "
SEGMENT = f"{0:020}.log"


def rows() -> Iterator[tuple[str, str]]:
    """Yield the second and the third cell of each row of the page's table."""
    section = PAGE.read_text("utf-8").partition(TITLE)[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) >= 2 and cells[-2].startswith("`"):
            yield CODE.fullmatch(cells[-2])[2], cells[-1].removesuffix(" |")


ROWS = list(rows())


def as_words(line: str) -> list[str]:
    """Return the words of a line of bash, without calling one."""
    return [word.replace("$\\t", "\t") for word in shlex.split(line.replace("$'\\t'", "'$\\t'"))]


def given(foreign: str) -> Iterator[list[str]]:
    """Yield a foreign command as it may be given to plog: whole, and with plog's own name."""
    first, *others = as_words(foreign)
    yield [first, *others]
    own = first.removeprefix("kafka-").removesuffix(".sh")
    if first == "kcat" or own in plog.list_commands(None):
        yield others if first == "kcat" else [own, *others]


def test_the_table_has_its_rows():
    assert len(ROWS) > 50
    assert any(foreign.startswith("kcat -G") for foreign, _ in ROWS)


@pytest.mark.parametrize(("foreign", "command"), ROWS, ids=[foreign for foreign, _ in ROWS])
def test_foreign_command_leads_to_the_command_of_its_row(foreign: str, command: str) -> None:
    for words in given(foreign):
        if ["plog", *words] == as_words(command.strip("`")):
            continue  # both have the same words for it
        line = hint(plog, words)
        assert line is not None, words
        if command.startswith(NONE):
            name = words[0].removesuffix(".sh")
            assert line == f"plog has no command for {name}: {command.removeprefix(NONE)}"
            continue
        (_, code) = CODE.fullmatch(command).groups()
        # A file's contents are not in the hint, so it has placeholders for them.
        pattern = PLACEHOLDER.sub(r"\\S+", re.escape(line.removeprefix(MEANS)))
        assert re.fullmatch(pattern, code), line


def test_every_rule_for_a_whole_tool_is_shown_in_the_table():
    shown = {re.sub(r"^kafka-|\.sh$", "", as_words(foreign)[0]) for foreign, _ in ROWS}
    assert {tool.names[0] for tool in TOOLS} - {"consume"} <= shown
    assert {foreign.split(".sh")[0].removeprefix("kafka-") for foreign, c in ROWS
            if c.startswith(NONE)} <= WITHOUT_COUNTERPART.keys()  # fmt: skip


COMMANDS = [
    CODE.fullmatch(command)[2]
    for _, command in ROWS
    if not command.startswith((NONE, "`plog server "))  # a broker does not end
]


@pytest.fixture(scope="module")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own, since some commands change its settings."""
    overrides = {
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.num.partitions": 5,
    }
    with BrokerProcess(tmp_path_factory.mktemp("hints"), overrides=overrides) as running:
        yield running


@pytest.fixture
def flights(broker, call, monkeypatch, tmp_path) -> Path:
    """A topic, a group and a transaction for the commands of the page; return a directory."""
    call("topics", "create", "flights", "--if-not-exists", "--partitions", 3)
    with Producer(broker.bootstrap) as producer:
        for value in (b"k:one", b"k:two"):
            producer.send("flights", value, key=b"k", partition=0).result()
    commit(broker, "readers", {TopicPartition("flights", 0): 1})
    (tmp_path / "flights.csv").write_text("k:three\n")
    (tmp_path / SEGMENT).write_bytes((broker.log_dirs[0] / "flights-0" / SEGMENT).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def payments(broker) -> None:
    with Producer(broker.bootstrap, transactional_id="payments") as producer:
        producer.init_transactions()


@pytest.mark.usefixtures("flights", "payments")
@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_command_of_the_page_succeeds(call, command: str) -> None:
    words = as_words(command)[1:]
    if words[:2] == ["perf", "produce"]:
        words += ["--seconds", "0.1"]
    if words[0] == "consume" and not {"--max", "--exit-at-end"} & set(words):
        words.append("--exit-at-end")
    # A line to write, with each separator, or the answer to a question.
    done = call(*words, stdin=b"k:\tv\n" if words[0] == "produce" else b"y\n")
    if words[1:2] == ["delete-records"]:
        call("topics", "delete", "flights", "--yes")  # the other commands need the first records
    if words[0] == "consume" and "latest" not in words and "readers" not in words:
        assert done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("topic list", "topics list"),
        ("topics list --topic x", "topics describe x"),
        ("topics --describe --under-replicated-partitions", "cluster"),
        ("get-offsets --topic x --time -1", "topics offsets x --at latest"),
        ("topics --create --topic x", "topics create x"),
        ("topics --list --exclude-internal", "topics list"),
        ("topics --list --zookeeper zk:2181/kafka", "topics list"),
        ("bin/kafka-topics.sh --list --bootstrap-server=b:1", "topics list --bootstrap-server b:1"),
        ("consume --topic flights --from-beginning", "consume flights --from earliest"),
        ("consume --from-beginning flights", "consume flights --from earliest"),
        ("consume flights --bootstrap-servers b:1", "consume flights --bootstrap-server b:1"),
        ("consume --topic flights --group g", "consume flights --group g"),
        ("consume -t flights -o beginning -eq", "consume flights --from earliest --exit-at-end"),
        ("consume -C -t flights -c5", "consume flights --max 5"),
        ("-L -b b:1", "topics list -b b:1"),
        ("-b b:1 -t flights -o end", "consume flights -b b:1 --from latest"),
        ("console-consumer", "consume TOPIC"),
        ("consumer-groups", "groups list"),
        ("groups --list", "groups list"),
        ("groups --describe --group g --offsets", "groups describe g"),
        ("produce --broker-list b:1 --topic x", "produce x --bootstrap-server b:1"),
        ("produce --topic x --header 'a b=c d'", "produce x --header 'a b=c d'"),
        ("produce --topic x --reader-property parse.key=true", r"produce x --key-separator $'\t'"),
        ("topics topic x --topic x", None),
        ("consume --include 'f.*'", "consume --pattern 'f.*'"),
        ("consume --whitelist 'f.*' -e", "consume --pattern 'f.*' --exit-at-end"),
        ("kafka-console-consumer --whitelist 'f.*'", "consume --pattern 'f.*' --from latest"),
        ("consume flights --include 'f.*'", None),
        ("kafka-get-offsets.sh --topic x --time -2", "topics offsets x --at earliest"),
        ("kafka-get-offsets.sh --topic x --time=-3", "topics offsets x --at max-timestamp"),
        ("kafka-get-offsets.sh --topic x --time -4", "topics offsets x --at earliest"),
        ("kafka-get-offsets.sh --topic x --time -5", "topics offsets x --at TIME"),
        ("kafka-console-producer --topic x --request-required-acks -1", "produce x --acks all"),
        ("kafka-console-producer --topic x --producer-property acks=-1", "produce x --acks all"),
        ("kafka-console-producer --topic x --request-required-acks 2", None),
        ("kcat -P -t x -X acks=-1", "produce x --acks all"),
        ("groups reset --reset-offsets", "groups reset GROUP"),
        ("groups reset g --reset-offsets --to-latest", "groups reset g --to-latest"),
        ("groups describe g --describe", "groups describe g"),
        (r"consume x -f '%o %s\n'", r"consume x --format '{offset} {value}\n'"),
        (
            "kcat -C -t x -f '%t/%p@%T %k %K %S %h %%{}'",
            "consume x --format "
            "'{topic}/{partition}@{timestamp} {key} {key_size} {value_size} {headers} %{{}}'",
        ),
        ("kcat -C -t x -f %R", None),
        ("kcat -Q -t x:0:1767225600000", "topics offsets x:0 --at 1767225600000"),
        ("kcat -Q -t x:0:-1", "topics offsets x:0 --at latest"),
        ("-Q -b b:1 -t x:0:-2", "topics offsets x:0 --at earliest -b b:1"),
        ("kcat -Q -t x:0:5 -t y:0:5", None),
        ("topics add-partitions x --partitions 6", "topics add-partitions x 6"),
        (
            "kafka-configs.sh --describe --entity-type broker-loggers --entity-name 1",
            "configs describe broker-logger 1",
        ),
        (
            "kafka-configs.sh --alter --broker-logger 1 --add-config root=DEBUG",
            "configs set broker-logger 1 root=DEBUG",
        ),
        ("kafka-log-dirs.sh --describe", "topics describe TOPIC"),
        ("kafka-log-dirs.sh --describe --topic-list x,y", "topics describe x y"),
        ("kafka-server-start.sh s.properties", "server s.properties"),
        (
            "kafka-server-start -daemon s.properties --override a=1",
            "server s.properties --override a=1",
        ),
        ("broker list", "cluster"),
        ("brokers -b b:1", "cluster -b b:1"),
        ("topics help", "topics --help"),
        ("topics create help", None),
        (
            "kafka-console-producer --topic x --property parse.headers=true",
            r"produce x --header-separator '\t'",
        ),
        (
            "kafka-console-producer --topic x --property parse.headers=true"
            " --property parse.key=true",
            r"produce x --key-separator $'\t' --header-separator '\t'",
        ),
        # Misspelt.
        ("topcs list", "topics list"),
        ("topics lst --internl", "topics list --internal"),
        ("topics create x --partition 3", "topics create x --partitions 3"),
        ("groups describe g --member", "groups describe g --members"),
        ("consume x --exit-at-en", "consume x --exit-at-end"),
        ("groups reset g --topic t --to earliest", "groups reset g --topic t --to-earliest"),
        ("help", "--help"),
        ("help groups reset", "groups reset --help"),
        ("help nothing", None),
        ("consume --topic --help", "consume --topics --help"),
        ("consume --topic x --help", "consume x --help"),
        ("kafka-consumer-groups.sh --help", "groups list --help"),
        ("topic list --help", "topics list --help"),
        ("topics lst --help", "topics list --help"),
        ("topic -h", "topics -h"),
        ("topic describe --help", "topics describe --help"),
        ("topics --help --list", "topics list --help"),
        ("help groups reset --help", "groups reset --help"),
        ("foo bar --help", None),
        ("--help", None),
        ("topics list --help", None),
        # Nothing like it, or nothing wrong with the words of the command line themselves.
        ("foo bar", None),
        ("consume x --nonsense", None),
        ("topics list", None),
        ("groups reset --topic x g", None),
        ("topics create -- --topic", None),
        ("configs --describe --entity-type users", None),
        ("topics create --topic x --topic y", None),
    ],
)
def test_wrong_words_get_a_hint_with_the_users_own(given: str, meant: str | None, capfd) -> None:
    expected = None if meant is None else f"{MEANS}plog {meant}"
    assert hint(plog, shlex.split(given)) == expected
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("consume flights --formatter x", "--formatter: --json and --format print records"),
        ("kafka-console-consumer --topic x --formatter=x", "--formatter: --json and --format"),
        ("kafka-console-producer --topic x --line-reader x", "--line-reader: --input json"),
        ("groups reset g --by-duration P1D", "--by-duration: --to-datetime resets to a time"),
        (
            "kafka-consumer-groups --reset-offsets --group g --by-duration P1D",
            "--by-duration: --to",
        ),
    ],
)
def test_option_without_counterpart_is_named_with_the_reason(given: str, text: str) -> None:
    line = hint(plog, shlex.split(given))
    assert line is not None
    assert line.startswith(f"plog has no option for {text}")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("acl list", "plog has no command for kafka-acls: plog has no access control yet"),
        (
            "top --bootstrap-server x:1",
            "plog top has no option --bootstrap-server: it reads the broker's metrics page, which"
            " --metrics names",
        ),
        (
            "health -b x:1",
            "plog health has no option -b: it reads the broker's address from PROPERTIES",
        ),
    ],
)
def test_what_plog_lacks_is_said_with_the_reason(given: str, line: str) -> None:
    assert hint(plog, shlex.split(given)) == line


def examples(tool: Tool) -> Iterator[list[str]]:
    """Yield command lines with each action of a tool, and with each of its options."""
    first = tool.names[0].split()
    actions = [
        [*first, *([f"--{action.word}"] if action.word else []), *action.needs.split()]
        for action in tool.actions
    ]
    yield from actions
    for option in tool.options:
        # The first action that has a place for the option.
        lines = [[*words, *option.split()] for words in actions]
        yield next((line for line in lines if hint(plog, line)), lines[0])


def is_accepted(words: list[str]) -> bool:
    """Return whether click accepts a command line with its values; a file may be missing."""
    command, rest = plog, words
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not rest or rest[0].startswith("-")):
            break
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    try:
        command.make_context(command.name, rest)
    except click.BadParameter as fault:
        return isinstance(fault.param.type, click.File | click.Path)
    except click.UsageError:
        return False
    return True


def test_every_rule_gives_a_command_that_click_accepts_or_placeholders():
    hints = 0
    for words in (words for tool in TOOLS for words in examples(tool)):
        for number in ("-1", "7"):  # a value for each placeholder
            given = [PLACEHOLDER.sub(number, word) for word in words]
            line = hint(plog, given)
            if line is None or not line.startswith(MEANS):
                continue
            hints += 1
            suggestion = as_words(line.removeprefix(MEANS))[1:]
            assert is_accepted(suggestion) or PLACEHOLDER.search(line), (given, line)
            assert not ("--pattern" in suggestion and "TOPIC" in suggestion), given
    assert hints > 200


def test_every_action_leads_to_a_command_of_plog():
    for tool in TOOLS:
        for action in tool.actions:
            words = [tool.names[0], *([f"--{action.word}"] if action.word else [])]
            words += action.needs.split()
            found = translated(plog, words)
            assert found is not None, action
            assert found[0] in plog.list_commands(None)


def test_hint_is_a_line_below_the_error_and_the_status_is_2(call):
    done = call("consume", "--topic", "flights", "--from-beginning", status=2)
    assert done.stderr.decode().splitlines() == [
        "plog: No such option '--topic'.",
        "plog: did you mean: plog consume flights --from earliest",
    ]
    done = call("topics", "lst", status=2)
    assert done.stderr.decode().splitlines()[-1] == "plog: did you mean: plog topics list"
    done = call("topics", "--list", "--json", status=2)
    error = json.loads(done.stderr)
    assert error["hint"] == "did you mean: plog topics list --json"


def test_missing_argument_is_said_without_a_hint(call):
    text = call("topics", "describe", status=2).stderr.decode()
    assert "Missing argument 'TOPIC" in text
    assert "did you mean" not in text


def test_choices_of_a_missing_argument_are_on_its_line(call):
    text = call("completion", status=2).stderr.decode()
    assert text.splitlines()[-1].endswith("Choose from: bash, zsh, fish")
    error = json.loads(call("configs", "describe", "--json", status=2).stderr)
    assert error["message"].endswith("Choose from: topic, broker, broker-logger, group")


def test_health_says_where_it_has_the_address_from(call):
    lines = call("health", "-b", "127.0.0.1:9092", status=2).stderr.decode().splitlines()
    assert lines[-1].endswith("it reads the broker's address from PROPERTIES")


@pytest.mark.parametrize("name", ["bundle", "doctor", "health"])
def test_help_says_where_the_variable_of_the_address_has_no_effect(call, name):
    text = " ".join(call(name, "--help").stdout.decode().split())
    assert "PLOG_BOOTSTRAP_SERVER has no effect" in text
    assert "broker on this host" in text


@pytest.mark.parametrize("page", ["docs/OPERATIONS.md", "docs/FIRST_STEPS.md"])
def test_page_says_where_the_variable_of_the_address_has_no_effect(page):
    (line,) = [
        item
        for item in re.split(r"\n(?=- |\n)", (ROOT / page).read_text("utf-8"))
        if "`PLOG_BOOTSTRAP_SERVER` names another" in item
    ]
    assert all(f"`{name}`" in line for name in ("doctor", "bundle", "health"))
    assert "has no effect" in line


def test_log_levels_are_accepted_in_any_case(call):
    broker = call("cluster", "--json").stdout
    name = json.loads(broker)["brokers"][0]["broker"]
    call("configs", "set", "broker-logger", name, "plog.storage=debug")
    found = json.loads(call("configs", "describe", "broker-logger", name, "--json").stdout)
    levels = {one["logger"]: one["level"] for one in found}
    call("configs", "reset", "broker-logger", name, "plog.storage")
    assert levels["plog.storage"] == "DEBUG"
    assert BrokerSettings({"log.level": "info"}).log_level == "INFO"
    assert BrokerSettings({"log.levels": "plog=Warn"}).log_levels == (("plog", "WARN"),)


def test_command_without_an_answer_advises_to_wait_for_a_start(call):
    text = call("topics", "list", "-b", "127.0.0.1:1", status=1).stderr.decode()
    assert "start one with `plog server`, wait until it has started, or name another" in text


def test_rules_are_loaded_by_a_usage_error_alone(broker):
    program = (
        "import sys; from plog.cli import main\ntry: main(sys.argv[1:])\n"
        "finally: print('plog.cli.foreign_words' in sys.modules)"
    )
    for words, loads in ((["topics", "list"], "False"), (["topic", "list"], "True")):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            env=environment(broker.bootstrap),
            check=False,
        )
        assert done.stdout.splitlines()[-1] == loads
