"""The words of Kafka's scripts and of kcat, and plog's words for them: data, which `hints` reads.

Words in capitals stand for the user's: `--topic TOPIC` means a value that plog's command repeats
where it says TOPIC. `TOPIC,TOPIC` is a list of them. FORMAT is a format of kcat, which becomes a
template of plog. An option maps to plog's options; to nothing
if plog's command does not need it; to `NAME=word` if it only determines the word for NAME. An
option that both have, spelt alike, needs no line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """One use of a tool, and plog's command for it.

    Attributes:
        word: what chooses it: `list` stands for the word `list` and the option `--list`.
        needs: options that have to be there as well; the first action whose needs are met counts.
        command: plog's command line, without `plog`. A word `NAME...` repeats, and `NAME?` is left
            out where the user has no word for it.
    """

    word: str
    needs: str
    command: str


class Tool(NamedTuple):
    """A tool: one of Kafka's scripts (without `kafka-` and `.sh`), kcat, or a command of plog."""

    names: Sequence[str]
    actions: Sequence[Action]
    options: Mapping[str, str]


SPELLINGS = {
    "--formatter-property": "--property",
    "--reader-property": "--property",
    "--consumer-config": "--consumer.config",
    "--producer-config": "--producer.config",
    "--whitelist": "--include",
}
"""Other names of the same options."""
REPEATING = ("--producer-props",)
"""Options that take all the words up to the next option."""

CONNECTION = {
    "--bootstrap-server ADDRESS": "--bootstrap-server ADDRESS",
    "--bootstrap-servers ADDRESS": "--bootstrap-server ADDRESS",
    "--broker-list ADDRESS": "--bootstrap-server ADDRESS",
    "--brokers ADDRESS": "--bootstrap-server ADDRESS",
    "--zookeeper ADDRESS": "",
    "--command-config FILE": "",
}

CONSUME = {
    "--topic TOPIC": "TOPIC",
    "--from-beginning": "--from earliest",
    "--offset OFFSET": "--from OFFSET",
    "--max-messages N": "--max N",
    "--timeout-ms MS": "--exit-at-end",
    "--property print.key=true": "--keys",
    "--property print.value=true": "",
    "--property print.timestamp=true": "--times",
    "--property print.partition=true": "--offsets",
    "--property print.offset=true": "--offsets",
    "--property print.headers=true": "--headers",
    "--property null.literal=TEXT": "--null TEXT",
    "--consumer-property group.id=GROUP": "--group GROUP",
    "--consumer-property isolation.level=LEVEL": "--isolation-level LEVEL",
    "--consumer-property auto.offset.reset=START": "--from START",
    "--consumer.config FILE": "",
    "--skip-message-on-error": "",
    "--new-consumer": "",
    "-t TOPIC": "TOPIC",
    "-o beginning": "--from earliest",
    "-o end": "--from latest",
    "-o s@TIME": "--from @TIME",
    "-o OFFSET": "--from OFFSET",
    "-c N": "--max N",
    "-e": "--exit-at-end",
    "-q": "",
    "-u": "",
    "-p PARTITION": "--partition PARTITION",
    "-J": "--json",
    "-f FORMAT": "--format FORMAT",
    "-g GROUP": "--group GROUP",
}

PRODUCE = {
    "--topic TOPIC": "TOPIC",
    "--property parse.key=false": "",
    "--property parse.headers=true": "--header-separator \\t",
    "--property headers.delimiter=SEPARATOR": "--header-separator SEPARATOR",
    "--property ignore.error=true": "--missing-key null",
    "--property null.marker=TEXT": "--null TEXT",
    "--property key.separator=SEPARATOR": "--key-separator SEPARATOR",
    "--compression-codec CODEC": "--compression CODEC",
    "--request-required-acks -1": "--acks all",
    "--request-required-acks ACKS": "--acks ACKS",
    "--producer-property acks=-1": "--acks all",
    "--producer-property acks=ACKS": "--acks ACKS",
    "--producer-property compression.type=CODEC": "--compression CODEC",
    "--producer-property linger.ms=MS": "--linger-ms MS",
    "--producer-property batch.size=BYTES": "--batch-size BYTES",
    "--producer.config FILE": "",
    "--max-partition-memory-bytes BYTES": "--batch-size BYTES",
    "--timeout MS": "--linger-ms MS",
    "--sync": "",
    "-t TOPIC": "TOPIC",
    "-K SEPARATOR": "--key-separator SEPARATOR",
    "-z CODEC": "--compression CODEC",
    "-p PARTITION": "--partition PARTITION",
    "-H HEADER": "--header HEADER",
    "-l FILE": "SOURCE=FILE",
}

GROUPS = {
    "--group GROUP": "GROUP",
    "--all-groups": "",
    "--offsets": "",
    "--verbose": "",
    "--dry-run": "",
    "--timeout MS": "",
}

KEYED = "--property parse.key=true"
PATTERN_FROM_START = "consume --pattern REGEX --from earliest"

TOOLS = (
    Tool(
        ("topics", "topic"),
        (
            Action("list", "--topic TOPIC", "topics describe TOPIC"),
            Action("list", "", "topics list"),
            Action("create", "", "topics create TOPIC"),
            Action("describe", "--topic TOPIC", "topics describe TOPIC..."),
            Action("describe", "--under-replicated-partitions", "cluster"),
            Action("describe", "--unavailable-partitions", "cluster"),
            Action("describe", "", "topics list"),
            Action("alter", "--partitions N", "topics add-partitions TOPIC N"),
            Action("alter", "--config CHANGE", "configs set topic TOPIC CHANGE..."),
            Action("alter", "--delete-config KEY", "configs reset topic TOPIC KEY..."),
            Action("add-partitions", "-n N", "topics add-partitions TOPIC N"),
            Action("add-partitions", "--partitions N", "topics add-partitions TOPIC N"),
            Action("delete", "", "topics delete TOPIC..."),
            Action("delete-records", "", "topics delete-records TOPIC PARTITION OFFSET"),
            Action("consume", "", "consume TOPIC..."),
            Action("produce", "", "produce TOPIC"),
        ),
        {
            "--topic TOPIC": "TOPIC",
            "--exclude-internal": "",
            "--if-exists": "",
            "--partition PARTITION": "PARTITION",
            "--offset OFFSET": "OFFSET",
            "-t TOPIC": "TOPIC",
            "-p N": "--partitions N",
            "-r N": "--replication-factor N",
            "-c CONFIG": "--config CONFIG",
        },
    ),
    Tool(
        ("console-consumer", "consumer"),
        (
            Action("", "--from-beginning --include REGEX", PATTERN_FROM_START),
            Action("", "--include REGEX", "consume --pattern REGEX --from latest"),
            Action("", "--from-beginning", "consume TOPIC... --from earliest"),
            Action("", "--offset OFFSET", "consume TOPIC... --from OFFSET"),
            Action("", "--topic TOPIC", "consume TOPIC... --from latest"),
            Action("", "", "consume TOPIC..."),
        ),
        CONSUME,
    ),
    Tool(
        ("consume",),
        (
            Action("C", "", "consume TOPIC..."),
            Action("", "--include REGEX", "consume --pattern REGEX"),
            Action("", "", "consume TOPIC..."),
        ),
        CONSUME,
    ),
    Tool(
        ("console-producer", "producer", "produce"),
        (
            Action(
                "",
                f"{KEYED} --property key.separator=SEPARATOR",
                "produce TOPIC --key-separator SEPARATOR",
            ),
            Action("", KEYED, "produce TOPIC --key-separator \t"),
            Action("P", "", "produce TOPIC SOURCE?"),
            Action("", "", "produce TOPIC SOURCE?"),
        ),
        PRODUCE,
    ),
    Tool(
        ("consumer-groups", "groups", "group"),
        (
            Action("list", "--state STATE,STATE", "groups list --state STATE..."),
            Action("list", "--group GROUP", "groups describe GROUP..."),
            Action("list", "", "groups list"),
            Action("describe", "--group GROUP --state", "groups describe GROUP..."),
            Action("describe", "--all-groups", "groups describe --all"),
            Action("describe", "", "groups describe GROUP..."),
            Action("delete", "", "groups delete GROUP..."),
            Action("delete-offsets", "", "groups delete-offsets GROUP"),
            Action("reset-offsets", "--execute", "groups reset GROUP --execute"),
            Action("reset-offsets", "", "groups reset GROUP --dry-run"),
            Action("reset", "--reset-offsets", "groups reset GROUP"),
            Action("reset", "", "groups reset GROUP"),
            Action("", "--group GROUP", "groups describe GROUP..."),
            Action("", "", "groups list"),
        ),
        GROUPS,
    ),
    Tool(
        ("configs", "config"),
        (
            Action("describe", "", "configs describe KIND NAME"),
            Action("alter", "--add-config CHANGE,CHANGE", "configs set KIND NAME CHANGE..."),
            Action("alter", "--delete-config KEY,KEY", "configs reset KIND NAME KEY..."),
            Action("set", "", "configs set KIND NAME CHANGE..."),
            Action("reset", "", "configs reset KIND NAME KEY..."),
        ),
        {
            "--entity-type topics": "KIND=topic",
            "--entity-type brokers": "KIND=broker",
            "--entity-type groups": "KIND=group",
            "--entity-type broker-loggers": "KIND=broker-logger",
            "--entity-name NAME": "NAME",
            "--entity-default": "NAME=default",
            "--topic NAME": "KIND=topic NAME",
            "--broker NAME": "KIND=broker NAME",
            "--broker-logger NAME": "KIND=broker-logger NAME",
            "--broker-defaults": "KIND=broker NAME=default",
            "--group NAME": "KIND=group NAME",
        },
    ),
    Tool(
        ("delete-records",),
        (Action("", "", "topics delete-records TOPIC PARTITION OFFSET"),),
        {"--offset-json-file FILE": ""},
    ),
    Tool(
        ("get-offsets", "run-class kafka.tools.GetOffsetShell"),
        (Action("", "", "topics offsets TOPIC..."),),
        {
            "--topic TOPIC": "TOPIC",
            "--topic-partitions TOPIC,TOPIC": "TOPIC",
            "--time -1": "--at latest",
            "--time -2": "--at earliest",
            "--time -3": "--at max-timestamp",
            "--time -4": "--at earliest",
            "--time -5": "--at TIME",
            "--time TIME": "--at TIME",
        },
    ),
    Tool(
        ("cluster", "broker", "brokers"),
        (
            Action("cluster-id", "", "cluster"),
            Action("list", "", "cluster"),
            Action("describe", "", "cluster"),
            Action("", "", "cluster"),
        ),
        {},
    ),
    Tool(
        ("reassign-partitions",),
        (
            Action("generate", "", "reassign plan --balance"),
            Action("execute", "--reassignment-json-file FILE", "reassign apply FILE"),
            Action("verify", "", "reassign status"),
            Action("list", "", "reassign status"),
            Action("cancel", "", "reassign cancel --all"),
        ),
        {
            "--reassignment-json-file FILE": "FILE",
            "--topics-to-move-json-file FILE": "",
            "--broker-list BROKER": "",
            "--additional": "",
            "--preserve-throttles": "",
            "--timeout MS": "",
        },
    ),
    Tool(
        ("broker-api-versions",),
        (Action("", "", "cluster --apis"),),
        {},
    ),
    Tool(
        ("log-dirs",),
        (
            Action("describe", "--topic-list TOPIC,TOPIC", "topics describe TOPIC..."),
            Action("describe", "", "topics describe TOPIC..."),
        ),
        {"--broker-list BROKER": ""},
    ),
    Tool(
        ("server-start",),
        (Action("", "", "server FILE"),),
        {"-daemon": ""},
    ),
    Tool(
        ("transactions", "transaction"),
        (
            Action("list", "", "transactions list"),
            Action("describe", "", "transactions describe ID"),
            Action(
                "describe-producers",
                "--topic TOPIC --partition PARTITION",
                "transactions producers TOPIC:PARTITION",
            ),
            Action("describe-producers", "", "transactions producers TOPIC"),
            Action("find-hanging", "", "transactions find-hanging"),
            Action("abort", "", "transactions abort TOPIC PARTITION"),
        ),
        {
            "--transactional-id ID": "ID",
            "--topic TOPIC": "TOPIC",
            "--partition PARTITION": "PARTITION",
            "--broker-id BROKER": "",
            "--max-transaction-timeout MINUTES": "--longer-than MINUTESm",
        },
    ),
    Tool(
        ("features", "feature"),
        (
            Action("describe", "", "features list"),
            Action("list", "", "features list"),
            Action("upgrade", "--feature FEATURE=LEVEL", "features set FEATURE LEVEL"),
            Action("downgrade", "--feature FEATURE=LEVEL", "features set FEATURE LEVEL --lower"),
            Action("disable", "--feature FEATURE", "features set FEATURE 0 --lower"),
        ),
        {},
    ),
    Tool(
        ("dump-log", "run-class kafka.tools.DumpLogSegments"),
        (Action("", "", "dump-log FILE..."),),
        {
            "--files FILE,FILE": "FILE",
            "--print-data-log": "--deep",
            "--deep-iteration": "--deep",
            "--index-sanity-check": "--verify",
            "--verify-index-only": "--verify",
        },
    ),
    Tool(
        ("producer-perf-test",),
        (Action("", "", "perf produce TOPIC"),),
        {
            "--topic TOPIC": "TOPIC",
            "--num-records N": "",
            "--throughput RATE": "",
            "--producer-props bootstrap.servers=ADDRESS": "--bootstrap-server ADDRESS",
            "--producer-props acks=-1": "--acks all",
            "--producer-props acks=ACKS": "--acks ACKS",
            "--producer-props compression.type=CODEC": "--compression CODEC",
            "--producer-props batch.size=BYTES": "--batch-size BYTES",
        },
    ),
    Tool(
        ("consumer-perf-test",),
        (Action("", "", "perf consume TOPIC --once"),),
        {"--topic TOPIC": "TOPIC", "--messages N": "", "--timeout MS": ""},
    ),
    Tool(
        ("kcat", "kafkacat"),
        (
            Action("L", "-t TOPIC", "topics describe TOPIC"),
            Action("L", "", "topics list"),
            Action("Q", "-t TOPIC:PARTITION:-2", "topics offsets TOPIC:PARTITION --at earliest"),
            Action("Q", "-t TOPIC:PARTITION:-1", "topics offsets TOPIC:PARTITION --at latest"),
            Action("Q", "-t TOPIC:PARTITION:TIME", "topics offsets TOPIC:PARTITION --at TIME"),
            Action("Q", "", "topics offsets TOPIC:PARTITION --at TIME"),
            Action("P", "", "produce TOPIC SOURCE?"),
            Action("G", "", "consume TOPIC... --group GROUP"),
            Action("C", "", "consume TOPIC..."),
            Action("", "", "consume TOPIC..."),
        ),
        {
            **PRODUCE,
            **CONSUME,
            "-b ADDRESS": "-b ADDRESS",
            "-X isolation.level=LEVEL": "--isolation-level LEVEL",
            "-X group.id=GROUP": "--group GROUP",
            "-X bootstrap.servers=ADDRESS": "-b ADDRESS",
            "-X acks=-1": "--acks all",
            "-X acks=ACKS": "--acks ACKS",
            "-G GROUP": "GROUP",
            "-v": "",
            "-E": "",
        },
    ),
)

OPTIONS_WITHOUT_COUNTERPART = {
    "--formatter": "--json and --format print records in other forms",
    "--by-duration": "--to-datetime resets to a time",
    "--line-reader": "--input json reads records in another form",
}
"""Options that no command of plog has, and what to use."""

OWN_OPTIONS_WITHOUT_COUNTERPART = {
    ("top", "--bootstrap-server"): "it reads the broker's metrics page, which --metrics names",
    ("top", "-b"): "it reads the broker's metrics page, which --metrics names",
    ("health", "--bootstrap-server"): "it reads the broker's address from PROPERTIES",
    ("health", "-b"): "it reads the broker's address from PROPERTIES",
}
"""Options that most commands of plog have, and the reason why one has not."""

WITHOUT_COUNTERPART = {
    "acls": "plog has no access control yet",
    "delegation-tokens": "plog has no authentication yet",
    "leader-election": "the controller elects preferred leaders by itself. The tool of Kafka works"
    " with plog",
    "replica-verification": "`plog cluster` lists partitions with replicas that are not in sync."
    " The tool of Kafka works with plog",
    "metadata-quorum": "plog does not support KRaft",
    "metadata-shell": "plog does not support KRaft",
    "storage": "`plog server` prepares its log directories itself",
    "server-stop": "a running broker is stopped with `systemctl stop plog`, or SIGTERM",
    "zookeeper-shell": "ZooKeeper's own zkCli.sh shows the nodes of a cluster",
    "zookeeper-server-start": "ZooKeeper's own zkServer.sh starts it; a broker alone needs none",
    "mirror-maker": "Kafka's MirrorMaker works with plog; see docs/MIGRATION.md",
    "connect-distributed": "Kafka Connect is a client and works with plog",
    "connect-standalone": "Kafka Connect is a client and works with plog",
    "client-metrics": "plog does not collect metrics of clients",
}
"""Tools without a command of plog, and the reason."""
