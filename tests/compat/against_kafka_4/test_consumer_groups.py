"""Consumer groups (KIP-848) beside Kafka 4.1: members, offsets, administrators, both protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.compat.against_kafka import group_steps as classic
from tests.compat.against_kafka.group_steps import commit, delete_offsets, deleted, fetch, listed
from tests.compat.against_kafka.pair import Case, Step, Topic
from tests.compat.against_kafka_4.steps import AWAY, beat, described, found, join, leave, two

HEARTBEAT = {
    **{
        f"version-{version}": [join("a", version), beat("a", version), described(version=version)]
        for version in (0, 1)
    },
    "version-0-without-an-id": [join("a", 0, member=""), beat("a", 0), described()],
    "version-1-without-an-id": [join("a", member="")],
    "without-an-id-later": [join("a"), beat("a", member="", epoch=1)],
    "without-an-id-later-0": [join("a", 0), beat("a", 0, member="", epoch=1)],
    "blank-id": [join("a", member=" ")],
    "empty-group": [join("a", group="")],
    "blank-group": [join("a", group=" ")],
    "epoch-below-all": [join("a", epoch=-3)],
    "epoch-of-unknown-group": [beat("a", epoch=5), described()],
    "leaving-unknown-group": [leave("a"), leave("a", AWAY, instance="i")],
    "unknown-member": [join("a"), beat("b", epoch=1), leave("b"), described()],
    "no-timeout": [join("a", timeout_ms=-1), described()],
    "no-timeout-0": [join("a", timeout_ms=0)],
    "no-topics": [join("a", topics=None), join("a", topics=[]), described()],
    "no-topics-0": [join("a", 0, topics=None), join("a", 0, topics=[])],
    "no-partitions-told": [join("a", owned=None), described()],
    "partitions-owned": [join("a", owned=[("t", [0])]), described()],
    "empty-instance": [join("a", instance=""), join("a", instance=" ")],
    "empty-rack": [join("a", rack=""), join("a", rack=" ")],
    "rack": [join("a", rack="r"), described()],
    "unknown-assignor": [join("a", assignor="best"), described()],
    "empty-assignor": [join("a", assignor="")],
    "range": [join("a", assignor="range"), join("b"), described()],
    "assignors-differ": [join("a", assignor="range"), join("b", assignor="uniform"), described()],
    "other-assignor-later": [join("a"), beat("a", assignor="range"), described(),
        beat("a", assignor="best")],
    "unknown-topic": [join("a", topics=["no"]), described()],
    "unknown-topic-too": [join("a", topics=["t", "no"]), described()],
    "topic-twice": [join("a", topics=["t", "t"]), described()],
    "other-topics-later": [join("a"), beat("a", topics=["u"]), beat("a", owned=[]), beat("a"),
        described()],
    "topics-in-another-order": [join("a", topics=["t", "u"]), beat("a", topics=["u", "t"])],
    "no-topics-any-more": [join("a"), beat("a", topics=[]), beat("a", owned=[]), described()],
    "everything-again": [join("a"), beat("a", timeout_ms=60_000, topics=["t"],
        owned=[("t", [0, 1])])],
    "everything-again-as-it-joins": [join("a"), join("a"), described()],
    "other-timeout-later": [join("a"), beat("a", timeout_ms=30_000), beat("a", timeout_ms=-7)],
    "joined-again-at-a-later-epoch": [*two(), join("a"), join("b"), described()],
    "joined-again-otherwise": [join("a"), join("a", topics=["u"]), described()],
    "unknown-partitions-owned": [join("a"), beat("a", owned=[("t", [0, 1, 7]), ("no", [0])])],
    "epoch-above": [join("a"), beat("a", epoch=2), beat("a")],
    "epoch-before": [join("a"), join("b"), beat("a"), beat("a", owned=[("t", [0])]),
        beat("a", epoch=1), beat("a", epoch=1, owned=[("t", [0])]),
        beat("a", epoch=1, owned=[("t", [0, 1])]), beat("a", epoch=1, owned=[])],
    "two": [join("a"), join("b"), described(), beat("a"), described(), beat("b"),
        beat("a", owned=[("t", [0])]), described(), beat("b"), described(), beat("a")],
    "one-of-two-leaves": [*two(), leave("b"), described(), beat("a"), described(),
        beat("b", epoch=2), leave("b")],
    "all-leave": [*two(), leave("a"), leave("b"), described(), join("a"), described()],
    "nothing-given-up": [join("a"), join("b"), beat("a"), beat("a", owned=[("t", [0, 1])]),
        beat("b"), described()],
    "group-is-full": [*two(), join("c"), join("d"), join("d", instance="i"), described()],
    "full-group-and-known-member": [*two(), join("c"), join("c")],
}  # fmt: skip

STATIC = {
    "alone": [join("a", instance="i"), described(), beat("a"), beat("a", instance="i"),
        described()],
    "unreleased": [join("a", instance="i"), join("b", instance="i"), described()],
    "came-back": [join("a", instance="i"), leave("a", AWAY, instance="i"), described(),
        join("b", instance="i"), described(), beat("a", epoch=1, instance="i"),
        beat("a", epoch=1), leave("a", instance="i")],
    "came-back-otherwise": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        join("b", instance="i", topics=["u"]), described()],
    "came-back-as-itself": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        join("a", instance="i"), described()],
    "beats-while-away": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        beat("a", epoch=1, instance="i"), beat("a", epoch=1)],
    "away-twice": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        leave("a", AWAY, instance="i"), described()],
    "away-and-left": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        leave("a", instance="i"), described()],
    "left": [join("a", instance="i"), leave("a", instance="i"), described()],
    "left-without-its-instance": [join("a", instance="i"), leave("a"), described()],
    "away-without-an-instance": [join("a"), leave("a", AWAY), described()],
    "away-without-its-instance": [join("a", instance="i"), leave("a", AWAY), described()],
    "dynamic-is-away": [join("a"), leave("a", AWAY, instance="i"), described()],
    "another-goes-away-for-it": [join("a", instance="i"), leave("b", AWAY, instance="i"),
        leave("b", instance="i"), described()],
    "unknown-instance": [join("a", instance="i"), beat("a", instance="j"),
        beat("b", epoch=1, instance="j"), leave("b", instance="j")],
    "instance-later": [join("a"), beat("a", instance="i"), described()],
    "other-instance-as-it-joins": [join("a", instance="i"), join("a", instance="j"), described()],
    "without-an-instance-as-it-joins": [join("a", instance="i"), join("a"), described()],
    "fenced-epoch": [join("a", instance="i"), beat("a", epoch=7, instance="i")],
    "one-of-two-came-back": [*two("a", "b"), join("c", instance="i"), leave("c", AWAY,
        instance="i"), beat("a"), join("d", instance="i"), described()],
}  # fmt: skip

REGEX = {
    "wrong": [join("a", topics=None, regex="("), described()],
    "wrong-later": [join("a"), beat("a", regex="("), described()],
    "wrong-beside-names": [join("a", regex="[")],
    "backreference": [join("a", topics=None, regex="(t)\\1")],
    "lookahead": [join("a", topics=None, regex="(?=t)")],
    "empty": [join("a", topics=None, regex=""), join("a", regex=""), described()],
    "matches": [join("a", topics=None, regex="[t]"), found("a", "[t]"), described(), beat("a")],
    "beside-names": [join("a", regex="u"), found("a", "u"), described()],
    "taken-back": [join("a", regex="u"), found("a", "u"), beat("a", regex=""),
        beat("a", owned=[("t", [0, 1])]), described()],
    "matches-nothing": [join("a", topics=None, regex="no.*"), described(), beat("a")],
    "matches-the-beginning-of-a-name": [join("a", topics=None, regex=""),
        beat("a", topics=["u"], regex="|t"), described()],
    "version-0": [join("a", 0, topics=None)],
}  # fmt: skip

DESCRIBE = {
    **{
        f"version-{version}": [*two(), described(version=version),
            described(version=version, operations=True)]
        for version in (0, 1)
    },
    "unknown": [described(), described(operations=True), described("g", "h")],
    "empty": [described("")],
    "twice": [join("a"), described("g", "g")],
    "classic": [*classic.alone(), described()],
    "classic-that-only-commits": [commit(("t", 0, 5)), described()],
    "good-and-bad": [join("a"), described("g", "no", "")],
    "emptied": [join("a"), leave("a"), described()],
    "of-no-groups": [Step(lambda side: described().request(side).__class__(group_ids=[],
        include_authorized_operations=False), 1)],
}  # fmt: skip

T = ("t", 0, 5)
WANTED = ("t", [0, 1])
OFFSETS = {
    "of-member": [join("a"), commit(T, via="a", generation=1), fetch(WANTED),
        fetch(WANTED, member="a", epoch=1)],
    "of-member-8": [join("a"), commit(T, via="a", generation=1, version=8),
        fetch(WANTED, version=8), fetch(WANTED, version=5)],
    "of-member-2": [join("a"), commit(T, via="a", version=2)],
    "of-member-7-with-wrong-epoch": [join("a"), commit(T, via="a", generation=7, version=7)],
    "epoch-above": [join("a"), commit(T, via="a", generation=2), fetch(WANTED)],
    "epoch-0": [join("a"), commit(T, via="a", generation=0)],
    "epoch-below": [*two(), commit(T, via="a", generation=1), fetch(WANTED)],
    "no-epoch": [join("a"), commit(T, via="a", generation=-1)],
    "epoch-left": [join("a"), commit(T, via="a", generation=-2)],
    "unknown-member": [join("a"), commit(T, member="nobody", generation=1)],
    "nobody": [join("a"), commit(T), commit(T, generation=1), commit(T, member="nobody")],
    "nobody-8": [join("a"), commit(T, version=8), commit(T, version=2)],
    "instance": [join("a", instance="i"), commit(T, via="a", generation=1, instance="i"),
        commit(T, via="a", generation=1, instance="j"), commit(T, via="a", generation=1)],
    "away": [join("a", instance="i"), leave("a", AWAY, instance="i"),
        commit(T, via="a", generation=1, instance="i")],
    "emptied": [join("a"), commit(T, via="a", generation=1), leave("a"), commit(("t", 1, 6)),
        commit(T, member="a", generation=1), commit(T, member="a"), fetch(WANTED)],
    "emptied-8": [join("a"), leave("a"), commit(T, version=8), fetch(WANTED)],
    "unknown-group": [commit(T, generation=1, member="a"), commit(T, generation=0, member="a")],
    "unknown-topic": [join("a"), commit(T, ("no", 0, 1), via="a", generation=1),
        fetch(WANTED, ("no", [0]))],
    "of-topics-not-wanted": [join("a"), commit(("u", 0, 3), via="a", generation=1),
        fetch(("u", [0]))],
    "fetched-at-other-epochs": [join("a"), commit(T, via="a", generation=1),
        fetch(WANTED, member="a", epoch=2), fetch(WANTED, member="a", epoch=0),
        fetch(WANTED, member="a"), fetch(WANTED, every=True, member="a", epoch=2)],
    "fetched-by-others": [join("a"), commit(T, via="a", generation=1),
        fetch(WANTED, member="nobody", epoch=1), fetch(WANTED, member="", epoch=1),
        fetch(WANTED, member="nobody"), fetch(WANTED, member=""), fetch(WANTED, epoch=1)],
    "fetched-all": [join("a"), commit(T, via="a", generation=1),
        fetch(every=True, member="a", epoch=1), fetch(every=True, version=7)],
    "fetched-of-unknown-group": [fetch(WANTED, member="a", epoch=1), fetch(WANTED)],
    "fetched-of-emptied": [join("a"), commit(T, via="a", generation=1), leave("a"),
        fetch(WANTED, member="a", epoch=1), fetch(WANTED)],
    "fetched-of-classic": [*classic.alone(), fetch(WANTED, member="a", epoch=1),
        fetch(WANTED, member="nobody", epoch=9)],
    "deleted": [join("a"), commit(T, ("u", 0, 1), via="a", generation=1),
        delete_offsets(WANTED, ("u", [0])), fetch(WANTED, ("u", [0]))],
    "deleted-of-emptied": [join("a"), commit(T, via="a", generation=1), leave("a"),
        delete_offsets(WANTED), fetch(WANTED), described()],
}  # fmt: skip

ADMIN = {
    "listed": [join("a"), *(listed(version) for version in range(6))],
    "listed-by-type": [join("a"), *classic.alone("b", "h"), listed(types=["consumer"]),
        listed(types=["CONSUMER"]), listed(types=["classic"]), listed(types=["share"]),
        listed(types=["no"]), listed(types=["consumer", "classic"])],
    "listed-by-state": [join("a"), listed(states=["Stable"]), listed(states=["sTABLE"]),
        listed(states=["Empty"]), listed(states=["Reconciling", "Assigning"]), join("b"),
        listed(states=["Reconciling"]), listed(states=["Stable"], version=4)],
    "listed-emptied": [join("a"), leave("a"), listed(), listed(states=["empty"])],
    **{f"described-as-classic-{version}": [join("a"), classic.described("g", version=version),
        leave("a"), classic.described("g", version=version)] for version in range(6)},
    "described-as-classic-with-operations": [join("a"), classic.described("g", operations=True)],
    "deleted": [join("a"), deleted("g"), leave("a"), deleted("g"), described(), deleted("g")],
    "deleted-with-offsets": [join("a"), commit(T, via="a", generation=1), leave("a"), deleted("g"),
        fetch(WANTED), join("a"), described()],
    "good-and-bad-deleted": [join("a"), leave("a"), join("b", group="h"), deleted("g", "h", "no")],
}  # fmt: skip

ALONE = [
    *([classic.join("a", topics=["t"])] * 2),
    classic.sync("a", assigned={"a": {"t": [0, 1]}}),
]
"""A classic group of one member, which has all partitions."""
BESIDE = [join("a"), *([classic.join("b", topics=["t"])] * 2), classic.sync("b")]
"""A consumer group with a member of each protocol."""
OTHER_PROTOCOL = {
    "upgraded": [*ALONE, join("b"), described(), listed(), classic.described("g"),
        classic.beat("a")],
    "upgraded-and-rebalanced": [*ALONE, join("b"), classic.beat("a"),
        classic.join("a", topics=["t"]), classic.sync("a"), beat("b"), described(),
        classic.beat("a"), commit(T, via="a", generation=2), commit(T, via="a", generation=1),
        commit(T, via="a", generation=2, version=8), fetch(WANTED)],
    "upgraded-and-downgraded": [*ALONE, join("b"), leave("b"), described(), listed(),
        classic.described("g"), classic.beat("a"), classic.join("a", topics=["t"]),
        classic.sync("a", assigned={"a": {"t": [0, 1]}}), classic.described("g")],
    "classic-member-of-upgraded-leaves": [*ALONE, join("b"), classic.leave(("a", None)),
        described(), beat("b")],
    "both-and-the-consumer-leaves": [*BESIDE, described(), leave("a"), described(), listed(),
        classic.described("g"), classic.beat("b", generation=2)],
    "both-and-the-classic-one-leaves": [*BESIDE, classic.leave(("b", None)), described()],
    "both-and-the-classic-one-beats": [*BESIDE, classic.beat("b", generation=2),
        classic.beat("b", generation=1), classic.beat("b", generation=7),
        classic.sync("b", generation=7), beat("b", epoch=2)],
    "both-and-the-consumer-gives-up": [*BESIDE, beat("a"), beat("a", owned=[("t", [0])]),
        classic.beat("b", generation=2), classic.join("b", topics=["t"]), classic.sync("b"),
        classic.beat("b"), described()],
    "both-and-the-classic-one-commits": [*BESIDE, commit(T, via="b", generation=2),
        commit(T, via="b", generation=1), commit(T, via="b", generation=2, version=5),
        fetch(WANTED), fetch(WANTED, member="b", epoch=1)],
    "nonsense-is-assigned": [*classic.alone(topics=["t"]), join("b"), described(), listed()],
    "nothing-is-assigned": [*([classic.join("a", topics=["t"])] * 2), classic.sync("a"),
        join("b", topics=["u"]), described(), listed()],
    "upgraded-while-rebalancing": [*([classic.join("a", topics=["t"])] * 2),
        join("b", topics=["u"]), described(),
        classic.sync("a", assigned={"a": {"t": [0, 1]}})],
    "of-another-type": [*classic.alone(kind="connect"), join("b"), classic.described("g")],
    "that-tells-no-topics": [*classic.alone(), join("b"), classic.described("g")],
    "epoch-of-classic-group": [*ALONE, beat("b", epoch=1), leave("b")],
    "emptied-classic-group": [*ALONE, classic.leave(("a", None)), join("b"), described(), listed(),
        classic.described("g")],
    "offsets-of-emptied-classic-group": [*ALONE, commit(T, via="a", generation=1),
        classic.leave(("a", None)), join("b"), fetch(WANTED, member="b", epoch=1)],
    "group-that-only-commits": [commit(T), join("b"), described(), fetch(WANTED)],
    "pending-classic-member": [classic.join("a"), join("b"), described()],
    "classic-joins": [join("a"), classic.join("b", topics=["t"]), described()],
    "classic-joins-for-good": [join("a"), *([classic.join("b", topics=["t"])] * 2), described(),
        listed()],
    "classic-of-another-type-joins": [join("a"), classic.join("b", kind="connect", topics=["t"])],
    "classic-with-nonsense-joins": [join("a"), *([classic.join("b")] * 2)],
    "classic-without-protocols-joins": [join("a"), classic.join("b", protocols=())],
    "classic-unknown-member-joins": [join("a"), classic.join("b", member="nobody", topics=["t"])],
    "static-classic-joins": [join("a"), classic.join("b", instance="i", topics=["t"]),
        described()],
    "classic-with-the-instance-of-another": [join("a", instance="i"),
        classic.join("b", instance="i", topics=["t"])],
    "classic-joins-emptied-group": [join("a"), leave("a"), *([classic.join("b")] * 2),
        classic.sync("b", assignments={"b": b"1"}), listed(), described(), classic.described("g")],
    "classic-joins-full-group": [*two(), join("c"), classic.join("d", topics=["t"])],
    "classic-requests-of-a-consumer": [join("a"), classic.beat("a", generation=1),
        classic.sync("a", generation=1), classic.join("a", topics=["t"]),
        classic.leave(("a", None)), described()],
    "classic-requests-of-nobody": [join("a"), classic.beat("b", member="nobody", generation=1),
        classic.sync("b", member="nobody", generation=1), classic.leave(("nobody", None))],
    "classic-leave-by-instance": [join("a", instance="i"), classic.leave(("", "i")), described()],
    "classic-requests-of-emptied-group": [join("a"), leave("a"),
        classic.beat("b", member="nobody", generation=1),
        classic.sync("b", member="nobody", generation=1), classic.leave(("nobody", None)),
        classic.join("b", member="nobody")],
    "consumer-has-the-id-of-a-classic-member": [*ALONE, beat("a", epoch=0, timeout_ms=60_000,
        topics=["t"], owned=[]), described()],
}  # fmt: skip

TOPICS = {"t": Topic(partitions=2), "u": Topic()}
GROUPS: dict[str, dict[str, Sequence[Step]]] = {
    "ConsumerGroupHeartbeat": HEARTBEAT,
    "ConsumerGroupHeartbeat of static members": STATIC,
    "ConsumerGroupHeartbeat with expressions": REGEX,
    "ConsumerGroupDescribe": DESCRIBE,
    "Offsets of consumer groups": OFFSETS,
    "Administration of consumer groups": ADMIN,
    "Both protocols": OTHER_PROTOCOL,
}
CASES = {
    f"{api}/{name}": Case(steps, TOPICS)
    for api, cases in GROUPS.items()
    for name, steps in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
