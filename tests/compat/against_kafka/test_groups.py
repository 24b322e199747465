"""Groups of the classic protocol beside Kafka 3.9, whose coordinator is ZooKeeper mode's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.compat.against_kafka.ask import grow
from tests.compat.against_kafka.group_steps import (
    alone,
    beat,
    commit,
    delete_offsets,
    deleted,
    described,
    fetch,
    heard,
    join,
    leave,
    listed,
    sync,
    two,
    until,
)
from tests.compat.against_kafka.pair import Case, Step, Topic, case_of
from tests.compat.against_kafka.test_cluster import find
from tests.compat.against_kafka.test_topics import as_it_is

pytestmark = pytest.mark.usefixtures("groups_are_kept")

LONG_METADATA = "m" * 4097
LONGEST_METADATA = "m" * 4096


def joined(version: int) -> list[Step]:
    """Have a member join for the first time; from version 4 on it is told its id first."""
    return [join("a", version)] * (2 if version >= 4 else 1)


FIND = {
    **{f"version-{version}": [Step(find("g"), version)] for version in range(4)},
    **{f"version-{version}": [Step(find(keys=["g", "h"]), version)] for version in (4, 5, 6)},
    "same-twice": [Step(find(keys=["g", "g"]), 4)],
    "empty": [Step(find(keys=[""]), 4)],
    "empty-version-3": [Step(find(""), 3)],
}

THREE = [
    *two(),
    join("c", instance="i", later=True),
    until("PreparingRebalance"),
    join("a", later=True),
    join("b", later=True),
    heard("a", 9),
    heard("b", 9),
    heard("c", 9),
    sync("a"),
]
"""All that a group may have, one of them static."""

JOIN = {
    **{f"version-{version}": joined(version) for version in range(10)},
    "unknown-member": [join("a", member="nobody")],
    "unknown-member-of-group": [*alone(), join("b", member="nobody")],
    "empty-group": [join("a", group="")],
    "session-too-short": [join("a", session_ms=5999)],
    "session-too-long": [join("a", session_ms=1_800_001)],
    "session-too-short-of-unknown-member": [join("a", session_ms=1, member="nobody")],
    "no-protocols": [join("a", protocols=())],
    "no-protocols-3": [join("a", 3, protocols=())],
    "no-protocols-of-group": [*alone(), join("b", protocols=())],
    "empty-type": [join("a", kind="")],
    "empty-type-3": [join("a", 3, kind="")],
    "other-type": [*alone(), join("b", kind="connect")],
    "other-type-of-member": [*alone(), join("a", kind="connect")],
    "other-protocols": [*alone(), join("b", protocols=("roundrobin",))],
    "other-protocols-of-only-member": [*alone(), join("a", protocols=("roundrobin",))],
    "two": two(),
    "two-prefer-others": [
        *([join("a", protocols=("range", "roundrobin"))] * 2),
        sync("a", assignments={"a": b"1"}),
        join("b", protocols=("roundrobin", "range")),
        join("b", protocols=("roundrobin", "range"), later=True),
        until("PreparingRebalance"),
        join("a", protocols=("range", "roundrobin")),
        heard("b", 9),
    ],
    "group-is-full": [*THREE, join("d"), join("d", 3), join("d", instance="j")],
    "full-group-and-static-follower": [*THREE, join("d", instance="i"), described("g")],
    "full-group-with-pending": [*alone(), join("b"), join("c"), join("c", later=True),
        until("PreparingRebalance"), leave(("b", None)), join("a"), heard("c", 9)],
    "rejoined-by-leader": [*alone(), join("a"), described("g"), beat("a")],
    "rejoined-by-leader-with-changes": [*alone(), join("a", metadata=b"n"), described("g")],
    "rejoined-by-follower": [*two(), join("b"), described("g"), beat("a")],
    "rejoined-by-follower-with-changes": [
        *two(), join("b", metadata=b"n", later=True), until("PreparingRebalance"),
        beat("a"), join("a"), heard("b", 9),
    ],
    "rejoined-before-sync": [*joined(9), join("a"), described("g")],
    "rejoined-before-sync-with-changes": [*joined(9), join("a", metadata=b"n")],
    "old-member-in-empty-group": [*alone(), leave(("a", None)), join("a")],
    "new-member-in-empty-group": [*alone(), leave(("a", None)), *([join("b")] * 2)],
    "of-other-type-into-empty-group": [
        *alone(), leave(("a", None)), described("g"), *([join("b", kind="connect")] * 2)],
    "pending-with-instance": [join("a"), join("a", instance="i")],
    "static": [join("a", instance="i"), sync("a", instance="i", assignments={"a": b"1"}),
        described("g")],
    "static-with-longest-instance": [join("a", instance="i" * 32_730)],
    "static-with-longer-instance": [join("a", instance="i" * 32_731)],
    "static-with-other-letters": [join("a", instance="i / \N{SNOWMAN}")],
    "static-5": [join("a", 5, instance="i"), sync("a", 3, instance="i", assignments={"a": b"1"})],
    "static-with-unknown-member": [join("a", instance="i", member="nobody")],
    "static-with-unknown-member-of-group": [*alone(instance="i"),
        join("b", instance="j", member="nobody")],
    "static-fenced": [*alone(instance="i"), join("b", instance="i", member="nobody")],
    **{
        f"static-came-back-{version}": [
            *alone(instance="i"),
            join("b", version, instance="i"),
            join("a", instance="i"),
            beat("a", instance="i"),
            beat("b", instance="i"),
            sync("a", instance="i"),
            sync("b", instance="i"),
            described("g"),
        ]
        for version in (5, 8, 9)
    },
    "static-came-back-with-changes": [
        *alone(instance="i"), join("b", instance="i", metadata=b"n"), described("g")],
    "static-came-back-with-other-protocols": [
        *alone(instance="i"), join("b", instance="i", protocols=("roundrobin",)), described("g")],
    "static-came-back-before-sync": [
        join("a", instance="i"), join("b", instance="i"), sync("a", instance="i"), described("g")],
    "static-follower-came-back": [
        *two(b_instance="i"), join("c", instance="i"), beat("a"),
        sync("b", instance="i"), sync("c", instance="i"), described("g")],
    "static-without-instance": [*alone(instance="i"), join("a"), beat("a"), sync("a")],
}  # fmt: skip

SYNC = {
    **{
        f"version-{version}": [*joined(9), sync("a", version, assignments={"a": b"1"})]
        for version in range(6)
    },
    "unknown-group": [sync("a", generation=1, member="nobody")],
    "empty-group": [sync("a", group="")],
    "unknown-member": [*joined(9), sync("b", member="nobody")],
    "empty-member": [*joined(9), sync("b", member="")],
    "older-generation": [*joined(9), sync("a", generation=0)],
    "newer-generation": [*joined(9), sync("a", generation=2)],
    "negative-generation": [*joined(9), sync("a", generation=-1)],
    "other-type": [*joined(9), sync("a", kind="connect")],
    "other-protocol": [*joined(9), sync("a", protocol="roundrobin")],
    "no-type-5": [*joined(9), sync("a", kind=None)],
    "no-protocol-5": [*joined(9), sync("a", protocol=None)],
    "neither-5": [*joined(9), sync("a", kind=None, protocol=None)],
    "other-type-of-older-generation": [*joined(9), sync("a", kind="connect", generation=0)],
    "of-nobody": [*joined(9), sync("a"), described("g")],
    "of-others-too": [*joined(9), sync("a", assignments={"a": b"1", "nobody": b"2"}),
        described("g")],
    "again": [*alone(), sync("a"), sync("a", assignments={"a": b"other"}), described("g")],
    "wrong-when-stable": [*alone(), sync("a", kind="connect"), sync("a", generation=7),
        sync("b", member="nobody")],
    "while-preparing": [*alone(), join("b"), join("b", later=True), until("PreparingRebalance"),
        sync("a"), join("a"), heard("b", 9)],
    "follower-first": [*two(), join("b", metadata=b"n", later=True), until("PreparingRebalance"),
        join("a"), heard("b", 9), sync("b", later=True), beat("a"),
        sync("a", assignments={"a": b"1", "b": b"2"}), heard("b", 5), described("g")],
    "follower-waits-as-leader-joins": [
        *two(), join("b", metadata=b"n", later=True), until("PreparingRebalance"), join("a"),
        heard("b", 9), sync("b", later=True), beat("a"), join("a", metadata=b"n", later=True),
        heard("b", 5), join("b"), heard("a", 9)],
    "pending-member": [join("a"), sync("a", generation=0)],
    "wrong-instance": [*joined(9), sync("a", instance="i")],
    "empty": [*alone(), leave(("a", None)), sync("a")],
}  # fmt: skip

BEAT = {
    **{f"version-{version}": [*alone(), beat("a", version)] for version in range(5)},
    "unknown-group": [beat("a", generation=0, member="nobody")],
    "empty-group": [beat("a", group="")],
    "unknown-member": [*alone(), beat("b", member="nobody")],
    "empty-member": [*alone(), beat("b", member="")],
    "older-generation": [*alone(), beat("a", generation=0)],
    "newer-generation": [*alone(), beat("a", generation=2)],
    "negative-generation": [*alone(), beat("a", generation=-1)],
    "pending-member": [join("a"), beat("a", generation=0)],
    "before-sync": [*joined(9), beat("a"), beat("a", generation=0)],
    "while-preparing": [*alone(), join("b"), join("b", later=True), until("PreparingRebalance"),
        beat("a"), beat("a", generation=0), beat("c", member="nobody"), join("a"), heard("b", 9)],
    "empty": [*alone(), leave(("a", None)), beat("a"), beat("b", member="")],
    "wrong-instance": [*alone(), beat("a", instance="i")],
    "fenced": [*alone(instance="i"), beat("b", instance="i", member="nobody")],
}  # fmt: skip

LEAVE = {
    **{
        f"version-{version}": [
            *alone(), leave(("a", None), version=version), described("g"),
            leave(("a", None), version=version)]
        for version in range(6)
    },
    "unknown-group": [leave(("nobody", None))],
    "unknown-group-2": [leave(("nobody", None), version=2)],
    "empty-group": [leave(("nobody", None), group="")],
    "empty-group-2": [leave(("nobody", None), group="", version=2)],
    "nobody": [*alone(), leave()],
    "nobody-of-unknown-group": [leave()],
    "unknown-members": [*alone(), leave(("nobody", None), ("", None), ("", "i"), ("nobody", "i"))],
    "good-and-bad": [*alone(), leave(("nobody", None), ("a", None)), described("g")],
    "same-twice": [*alone(), leave(("a", None), ("a", None))],
    "both": [*two(), leave(("a", None), ("b", None)), described("g")],
    "leader-of-two": [*two(), leave(("a", None)), until("PreparingRebalance"), beat("b"),
        join("b")],
    "by-instance": [*alone(instance="i"), leave(("", "i")), described("g")],
    "by-instance-and-member": [*alone(instance="i"), leave(("a", "i")), described("g")],
    "by-instance-and-other-member": [*alone(instance="i"), leave(("nobody", "i")), described("g")],
    "static-by-member": [*alone(instance="i"), leave(("a", None)), described("g")],
    "member-by-unknown-instance": [*alone(), leave(("a", "j")), described("g")],
    "pending": [join("a"), leave(("a", None)), join("a"), described("g")],
    "before-sync": [*joined(9), leave(("a", None)), described("g")],
}  # fmt: skip

T = ("t", 0, 5)
WANTED = ("t", [0, 1])
COMMIT = {
    **{
        f"simple-{version}": [commit(T, version=version), fetch(WANTED)] for version in range(10)
    },
    **{
        f"of-member-{version}": [
            *alone(),
            commit(T, version=version, via="a", generation=None, epoch=3 if version >= 6 else -1),
            fetch(WANTED),
        ]
        for version in range(10)
    },
    "nothing": [commit(), listed()],
    "same-topic-twice": [commit(T, ("u", 0, 1), ("t", 1, 3)), fetch(WANTED)],
    "empty-group": [commit(T, group=""), fetch(WANTED, groups=[""])],
    "empty-group-0": [commit(T, group="", version=0)],
    "unknown-group-with-generation": [commit(T, generation=3)],
    "unknown-group-with-member": [commit(T, member="nobody")],
    "unknown-group-with-generation-and-member": [commit(T, generation=3, member="nobody")],
    "unknown-group-with-instance": [commit(T, instance="i"), fetch(WANTED)],
    "unknown-topic": [commit(T, ("no", 0, 1)), fetch(WANTED, ("no", [0]))],
    "unknown-partition": [commit(T, ("t", 7, 1)), fetch(("t", [0, 7]))],
    "negative-partition": [commit(("t", -1, 1)), fetch(("t", [-1]))],
    "unknown-topic-alone": [commit(("no", 0, 1)), listed(), described("g")],
    "unknown-topic-0": [commit(("no", 0, 1), version=0)],
    "unknown-topic-of-wrong-generation": [*alone(), commit(T, ("no", 0, 1), via="a", generation=7)],
    "long-metadata": [commit(T, metadata=LONG_METADATA), fetch(WANTED)],
    "longest-metadata": [commit(T, metadata=LONGEST_METADATA), fetch(WANTED)],
    "long-metadata-in-bytes": [commit(T, metadata="ä" * 2049), fetch(WANTED)],
    "null-metadata": [commit(T, metadata=None), fetch(WANTED), fetch(WANTED, version=7)],
    "empty-metadata": [commit(T, metadata=""), fetch(WANTED)],
    "time-of-its-own": [commit(T, version=1, committed_ms=1_700_000_000_000), fetch(WANTED)],
    **{
        f"retention-{version}": [commit(T, version=version, retention_ms=3_600_000), fetch(WANTED)]
        for version in (2, 3, 4)
    },
    "retention-0": [commit(T, version=2, retention_ms=0), fetch(WANTED)],
    "negative-offset": [commit(("t", 0, -1)), fetch(WANTED)],
    "very-negative-offset": [commit(("t", 0, -5)), fetch(WANTED)],
    "epoch": [commit(T, epoch=4), fetch(WANTED), fetch(WANTED, version=5),
        fetch(WANTED, version=4)],
    "negative-epoch": [commit(T, epoch=-2), fetch(WANTED)],
    "twice": [commit(T), commit(("t", 0, 3)), fetch(WANTED)],
    "same-partition-twice": [commit(T, ("t", 0, 3)), fetch(WANTED)],
    "simple-in-stable-group": [*alone(), commit(T), commit(T, member="nobody"),
        commit(T, version=0)],
    "wrong-generation": [*alone(), commit(T, via="a", generation=0),
        commit(T, via="a", generation=7),
        commit(T, via="a", generation=-1)],
    "unknown-member": [*alone(), commit(T, generation=None, member="nobody")],
    "of-pending-member": [join("a"), commit(T, via="a", generation=0), commit(T, via="a")],
    "before-sync": [*joined(9), commit(T, via="a", generation=None), commit(T, version=0)],
    "while-preparing": [*alone(), join("b"), join("b", later=True), until("PreparingRebalance"),
        commit(T, via="a", generation=None), commit(T, via="a", generation=0), fetch(WANTED),
        join("a"), heard("b", 9)],
    "simple-in-emptied-group": [*alone(), leave(("a", None)), commit(T),
        commit(T, via="a", generation=None),
        commit(T, generation=1), fetch(WANTED)],
    "wrong-instance": [*alone(), commit(T, via="a", generation=None, instance="i")],
    "fenced": [*alone(instance="i"), commit(T, generation=None, member="nobody", instance="i")],
    "of-static-member": [*alone(instance="i"), commit(T, via="a", generation=None, instance="i"),
        commit(T, via="a", generation=None)],
}  # fmt: skip

FETCH = {
    **{
        f"version-{version}": [commit(T, epoch=2), fetch(WANTED, ("no", [0]), version=version)]
        for version in range(10)
    },
    **{
        f"unknown-group-{version}": [fetch(WANTED, version=version)] for version in (0, 1, 5, 7, 8)
    },
    **{
        f"all-{version}": [commit(T, ("t", 1, 6), ("u", 0, 1)), fetch(every=True, version=version)]
        for version in range(2, 10)
    },
    "all-of-unknown-group": [fetch(every=True), fetch(every=True, version=2)],
    "all-of-group-without-offsets": [*alone(), fetch(every=True), fetch(WANTED)],
    "many-groups": [commit(T), commit(("t", 0, 9), group="h"),
        fetch(WANTED, groups=["g", "h", "no"])],
    "same-group-twice": [commit(T), fetch(WANTED, groups=["g", "g"])],
    "empty-group": [fetch(WANTED, groups=[""]), fetch(WANTED, groups=[""], version=7)],
    "no-topics": [commit(T), fetch(), fetch(version=7), fetch(version=1)],
    "no-partitions": [commit(T), fetch(("t", [])), fetch(("t", []), version=7)],
    "same-partition-twice": [commit(T), fetch(("t", [0, 0]))],
    "same-topic-twice": [commit(T), fetch(("t", [0]), ("t", [1]))],
    "negative-partition": [commit(T), fetch(("t", [-1, 7]))],
    "stable": [commit(T), fetch(WANTED, stable=True), fetch(WANTED, stable=True, version=7)],
    "stable-all": [commit(T), fetch(every=True, stable=True)],
}  # fmt: skip

DELETE_OFFSETS = {
    "ordinary": [commit(T), delete_offsets(("t", [0])), fetch(every=True), listed()],
    "unknown-group": [delete_offsets(("t", [0]))],
    "empty-group": [delete_offsets(("t", [0]), group="")],
    "nothing": [commit(T), delete_offsets(), delete_offsets(("t", []))],
    "what-is-not-committed": [commit(T), delete_offsets(("t", [1]), ("u", [0]))],
    "unknown-topic": [commit(T), delete_offsets(("no", [0]), ("t", [0, 7])), fetch(every=True)],
    "subscribed": [
        *alone(topics=["t"]), commit(T, ("u", 0, 2), via="a", generation=None),
        delete_offsets(("t", [0]), ("u", [0])), fetch(every=True)],
    "subscribed-before-sync": [
        *([join("a", topics=["t"])] * 2), delete_offsets(("t", [0]), ("u", [0]))],
    "subscribed-unreadable": [
        *alone(), commit(T, via="a", generation=None), delete_offsets(("t", [0]))],
    "subscribed-to-unknown": [*alone(topics=["no"]), delete_offsets(("no", [0]))],
    "other-type": [*alone(kind="connect"), delete_offsets(("t", [0]))],
    "emptied": [*alone(topics=["t"]), commit(T, via="a", generation=None), leave(("a", None)),
        delete_offsets(("t", [0])), fetch(every=True)],
    "pending": [join("a"), delete_offsets(("t", [0]))],
    "while-preparing": [
        *alone(topics=["t"]), join("b", topics=["u"]), join("b", topics=["u"], later=True),
        until("PreparingRebalance"), delete_offsets(("t", [0]), ("u", [0])),
        join("a", topics=["t"]), heard("b", 9)],
    "same-twice": [commit(T), delete_offsets(("t", [0, 0]))],
}  # fmt: skip

SOME = [*alone(), commit(T, group="h"), join("b", group="i"), *([join("c", group="j")] * 2)]
LIST = {
    **{f"version-{version}": [*SOME, listed(version)] for version in range(6)},
    **{
        f"state-{state or 'empty'}": [*SOME, listed(states=[state])]
        for state in ("Stable", "stable", "Empty", "CompletingRebalance", "Dead", "Nothing", "",
            "Unknown", "Assigning", "PREPARINGREBALANCE")
    },
    "states": [*SOME, listed(states=["Empty", "Stable", "Nothing"])],
    **{
        f"type-{kind or 'empty'}": [*SOME, listed(types=[kind])]
        for kind in ("classic", "Classic", "consumer", "share", "nothing", "", "unknown")
    },
    "types": [*SOME, listed(types=["consumer", "classic"])],
    "type-and-state": [*SOME, listed(states=["Empty"], types=["classic"])],
}  # fmt: skip

DESCRIBE = {
    **{f"stable-{version}": [*alone(), described("g", version=version)] for version in range(6)},
    **{f"unknown-{version}": [described("g", version=version)] for version in range(6)},
    "nothing": [described()],
    "empty-id": [described("")],
    "only-commits": [commit(T), described("g")],
    "emptied": [*alone(), leave(("a", None)), described("g")],
    "before-sync": [*joined(9), described("g")],
    "pending": [join("a"), described("g")],
    "static": [*alone(instance="i"), described("g"), described("g", version=3)],
    "same-twice": [*alone(), described("g", "g")],
    "many": [*SOME, described("g", "h", "i", "j", "no")],
    **{
        f"operations-{version}": [*alone(), described("g", "no", version=version, operations=True)]
        for version in (3, 4, 5)
    },
}

DELETE = {
    **{
        f"ordinary-{version}": [commit(T), deleted("g", version=version), described("g"),
            fetch(WANTED)]
        for version in range(3)
    },
    "unknown": [deleted("g")],
    "empty-id": [deleted("")],
    "nothing": [deleted()],
    "twice": [commit(T), deleted("g", "g")],
    "again": [commit(T), deleted("g"), deleted("g")],
    "unknown-twice": [deleted("g", "g")],
    "good-and-bad": [*SOME, deleted("g", "h", "i", "j", "no"), listed()],
    "stable": [*alone(), deleted("g"), described("g")],
    "emptied": [*alone(), leave(("a", None)), deleted("g"), listed(), beat("a"), join("a")],
    "pending": [join("a"), deleted("g"), join("a")],
    "before-sync": [*joined(9), deleted("g")],
    "and-made-again": [commit(T), deleted("g"), *alone(), fetch(every=True)],
}  # fmt: skip

TOPICS = {"t": Topic(partitions=2), "u": Topic()}
WITH_TOPICS = {
    "OffsetCommit",
    "OffsetFetch",
    "OffsetDelete",
    "DescribeGroups",
    "DeleteGroups",
    "ListGroups",
}


def cases(api: str, named: dict[str, Sequence[Step]]) -> dict[str, Case]:
    topics = TOPICS if api in WITH_TOPICS else {}
    return {f"{api}/{name}": case_of(steps, topics) for name, steps in named.items()}


GROW = {"internal": [Step(as_it_is(grow(("__consumer_offsets", 3), validate_only=True)), 3)]}
"""Only here does the topic exist at both brokers."""

CASES = {
    **cases("FindCoordinator", {f"group-{name}": steps for name, steps in FIND.items()}),
    **cases("JoinGroup", JOIN),
    **cases("SyncGroup", SYNC),
    **cases("Heartbeat", BEAT),
    **cases("LeaveGroup", LEAVE),
    **cases("OffsetCommit", COMMIT),
    **cases("OffsetFetch", FETCH),
    **cases("OffsetDelete", DELETE_OFFSETS),
    **cases("ListGroups", LIST),
    **cases("DescribeGroups", DESCRIBE),
    **cases("DeleteGroups", DELETE),
    **cases("CreatePartitions", GROW),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
