"""Command lines of Kafka's scripts, run by Kafka's tools and by plog's scripts, and compared.

A file of cases has these lines:

    # A comment.
    % records flights 10              a step on both brokers, see STEPS
    = plan.json {"version": 1}        a line of a file
    $ kafka-topics @ --list           a command line; @ stands for --bootstrap-server HOST:PORT,
                                      {server} for HOST:PORT, {dir} for the directory of the files
    < a line                          a line of its stdin
    ~ unreachable                     the name of a difference that docs/MIGRATION.md lists

Each side has a broker of its own and a directory of its own. Both brokers get the same steps and
command lines, so they hold the same. Ids, addresses, directories and times are left out of the
comparison, and the parts that only a JVM prints: its log lines and stack traces.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from plog.cli.kafka.__main__ import run
from tests.compat.kafka_tools import Tools

CLASSES = {
    "kafka-topics": "TopicCommand",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-console-consumer": "ConsoleConsumer",
    "kafka-consumer-groups": "ConsumerGroupCommand",
    "kafka-configs": "ConfigCommand",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-delete-records": "DeleteRecordsCommand",
    "kafka-log-dirs": "LogDirsCommand",
    "kafka-transactions": "TransactionsCommand",
    "kafka-features": "FeatureCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-dump-log": "DumpLogSegments",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-consumer-perf-test": "ConsumerPerformance",
}
"""Kafka's class behind each script."""
TIMEOUT_S = 120
HELP = re.compile(r"^(Option +Description|usage: |[A-Z][^\n]*\.\n\n  --)", re.MULTILINE)
USAGE = re.compile(r"^usage: .*?^(\S+: error: .*)", re.MULTILINE | re.DOTALL)
"""An error of a script with subcommands, behind its usage."""
JVM_LINES = re.compile(r"\s+at |\s+\.\.\. \d+ more|Caused by: |\[?(ERROR|WARN|INFO) |SLF4J")
"""Stack traces and log lines."""
EXCEPTION = re.compile(r'(?:Exception in thread "main" )?(?:(?:[a-z]\w*\.)+[A-Z][\w$]*(?:: |$))+')
"""The classes of an exception and its cause, before their message."""
VARYING = [
    (r"(?<=TopicId: )[\w-]{22}|(?<=Cluster ID: )[\w-]{22}", "<id>"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"(?<= )[\w+/-]{22}(?= /127)", "<id>"),  # of a member
    (r"(?<=isControl: true )(.*crc: )\d+", r"\1<crc>"),  # of a record with a time
    (r"\b1[6-9]\d{11}\b", "<ms>"),
    (r"(?<=<ms>)( +\t)\d+ +", r"\1<duration>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[:.,]\d{3}", "<time>"),
]


class Result(NamedTuple):
    """The output and status of a command line."""

    status: int
    out: str
    err: str


@dataclass
class Case:
    """A command line, or a step on both brokers."""

    words: list[str]
    line: int
    is_step: bool = False
    stdin: str = ""
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.line}: {shlex.join(self.words)}"

    def words_for(self, server: str, directory: Path) -> list[str]:
        """Return the words for one broker."""
        found: list[str] = []
        for word in self.words:
            if word == "@":
                found += ["--bootstrap-server", server]
            else:
                found.append(word.replace("{server}", server).replace("{dir}", str(directory)))
        return found


class Cases(NamedTuple):
    """The cases of a file, and the files that they read."""

    cases: list[Case]
    files: dict[str, str]


def read_cases(path: Path) -> Cases:
    """Read a file of cases."""
    cases: list[Case] = []
    files: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark, rest = line[:1], line[2:]
        if mark in ("$", "%"):
            cases.append(Case(shlex.split(rest), number, mark == "%"))
        elif mark == "<":
            cases[-1].stdin += f"{rest}\n"
        elif mark == "~":
            cases[-1].differences.append(rest.strip())
        elif mark == "=":
            name, _, text = rest.partition(" ")
            files[name] = files.get(name, "") + f"{text}\n"
        else:
            assert mark in ("", "#"), f"{path.name}:{number}: {line}"
    return Cases(cases, files)


def _without_words(result: Result) -> Result:
    return result._replace(out=bool(result.out) * "text", err=bool(result.err) * "text")


def _without_stream(result: Result) -> Result:
    return result._replace(out=bool(result.out + result.err) * "text", err="")


def _rows(result: Result) -> Result:
    """Return a result with sorted words: each is in a row, whatever divides and orders them."""
    if '{"brokers"' in result.out:
        return result._replace(out="".join(sorted(result.out)))
    # Kafka's table has no space between an error and the next row.
    divided = re.sub(r"((?:exist|to it|partition)\.)(?=\S)", r"\1 ", result.out)
    return result._replace(out=" ".join(sorted(re.findall(r"[^\s,]+", divided))))


def _without_topics(result: Result) -> Result:
    return result._replace(out=re.sub(r"\S+\(([\d,]+)\)", r"(\1)", result.out))


DIFFERENCES: dict[str, Callable[[Result], Result]] = {
    "help": lambda result: result._replace(out="", err=""),
    "version": _without_words,
    "checks": _without_words,
    "files": _without_words,
    "unreachable": _without_stream,
    "rows": _rows,
    "assignments": _without_topics,
    "controllers": lambda result: result._replace(out="", err="text"),
    "decoders": lambda result: Result(0, "", ""),
    "metrics": lambda result: result._replace(out=result.out.split("\n")[0], err=""),
    "classes": lambda result: result._replace(err=""),
}
"""What remains the same, by the name of a difference in docs/MIGRATION.md."""


def run_kafka(tools: Tools, words: list[str], stdin: str) -> Result:
    """Run a command line with Kafka's tool."""
    name, *arguments = words
    done = tools.runner.run(tools.main_class(CLASSES[name]), arguments, stdin, TIMEOUT_S)
    return Result(done.returncode, done.stdout, done.stderr)


def run_plog(words: list[str], stdin: str) -> Result:
    """Run a command line with plog's script, in this process."""
    name, *arguments = words
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    source = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", source):
        status = run(name, arguments)
    texts = []
    for stream in (out, err):
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        texts.append(stream.buffer.getvalue().decode())
    return Result(status, *texts)


def plain(result: Result, server: str, directory: Path) -> Result:
    """Return a result without the parts that differ from run to run, or from JVM to none."""
    out, err = result.out, result.err
    usage = USAGE.search(err)
    if usage:
        err = err[: usage.start()] + " ".join(usage[1].replace("-\n", "-").split())
    found = HELP.search(err)
    if found:
        err = err[: found.start()]
    lines = [line for line in err.split("\n") if not JVM_LINES.match(line)]
    if result.status == 0:  # the trace of an error that stdout reports
        lines = [line for line in lines if not EXCEPTION.match(line)]
    kept: list[str] = []
    for line in lines:
        message = EXCEPTION.sub("", line)
        # Tools that print an error and its stack trace have the message twice.
        if message and not (kept and kept[-1].endswith(message)):
            kept.append(message)
    err = "".join(f"{line}\n" for line in kept)
    return Result(result.status, *(_same(text, server, directory) for text in (out, err)))


FIGURE = re.compile(r"NaN|\d+(\.\d+)?")


def _without_figures(line: str) -> str:
    """Replace what a test of performance has measured; amounts and numbers of digits stay."""

    def shape(found: re.Match[str]) -> str:
        return "N" + "." * bool(found[1]) + "d" * len((found[1] or ".")[1:])

    if "records/sec" in line:
        first, comma, rest = line.partition(",")
        return first + comma + re.sub(r"\d+(\.\d+)?(?= rec| MB| ms)", shape, rest)
    fields = line.split(", ")
    if len(fields) == 10 and fields[-1][:1].isdigit():
        measured = (
            field if place in (2, 4) else FIGURE.sub(shape, field)
            for place, field in enumerate(fields)
        )
        return ", ".join(measured)
    return line


def _same(text: str, server: str, directory: Path) -> str:
    text = "\n".join(map(_without_figures, text.split("\n")))
    text = text.replace(server, "HOST:PORT").replace(str(directory), "DIR")
    text = text.replace(server.replace("127.0.0.1", "localhost"), "HOST:PORT")
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return re.sub(rf"\b{server.rpartition(':')[2]}\b", "PORT", text)


def shown(result: Result) -> Iterator[str]:
    """Yield the lines of a result for a failed comparison."""
    yield f"status {result.status}"
    yield from (f"  {line}" for line in result.out.split("\n"))
    yield from (f"! {line}" for line in result.err.split("\n") if line)
