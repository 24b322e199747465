"""Both engines of the table of fetch sessions (KIP-227): each by itself, and against each other."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plog._native import fetch_sessions as native
from plog._reference import fetch_sessions as reference

NO_ID = bytes(16)
ONE, TWO, THREE, FOUR = ((b"t", NO_ID, index) for index in range(4))
OUTCOMES = ("NONE", "NEW", "NEXT", "ENDED", "UNKNOWN", "WRONG_EPOCH", "MIXED_NAMES")
EVICT_AFTER_MS = native.EVICT_AFTER_MS

Table = native.SessionCache | reference.SessionCache


@pytest.fixture(params=[native, reference], ids=["native", "reference"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def asking(*names: tuple, offset: int = 0) -> list[tuple]:
    return [(*name, offset, 1000, -1, -1, -1) for name in names]


def begin(
    table: Table,
    session: tuple[int, int],
    asked: list[tuple] = (),
    forgotten: tuple[tuple, ...] = (),
    *,
    by_id: bool = False,
    now_ms: int = 0,
) -> tuple[int, int, int]:
    return table.begin(*session, list(asked), list(forgotten), by_id=by_id, now_ms=now_ms)


def create(table: Table, *names: tuple, now_ms: int = 0) -> int:
    outcome, session_id, epoch = begin(table, (0, 0), asking(*names), now_ms=now_ms)
    assert (outcome, epoch) in ((native.NEW, 1), (native.NONE, 0))
    return session_id


def names_of(table: Table, session_id: int, epoch: int) -> list[tuple]:
    found = table.partitions(session_id, epoch)
    assert found is not None
    return [part[:3] for part in found]


def test_engines_number_their_outcomes_alike() -> None:
    assert [getattr(native, name) for name in OUTCOMES] == list(range(len(OUTCOMES)))
    assert [getattr(reference, name) for name in OUTCOMES] == list(range(len(OUTCOMES)))
    assert reference.EVICT_AFTER_MS == native.EVICT_AFTER_MS == 120_000


# -- each by itself


def test_full_request_opens_a_session(engine: Any) -> None:
    table = engine.SessionCache(10)
    outcome, session_id, epoch = begin(table, (0, 0), asking(ONE, TWO))
    assert (outcome, epoch, len(table)) == (engine.NEW, 1, 1)
    assert 0 < session_id < 2**31
    assert names_of(table, session_id, 1) == [ONE, TWO]


@pytest.mark.parametrize(
    ("session", "asked"), [((0, -1), asking(ONE)), ((5, -1), asking(ONE)), ((0, 0), [])]
)
def test_request_outside_sessions_opens_none(
    engine: Any, session: tuple[int, int], asked: list[tuple]
) -> None:
    table = engine.SessionCache(10)
    assert begin(table, session, asked) == (engine.NONE, 0, 0)
    assert len(table) == 0


def test_next_request_fetches_all_that_is_remembered(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE, TWO)
    assert begin(table, (number, 1)) == (engine.NEXT, number, 2)
    assert names_of(table, number, 2) == [ONE, TWO]
    begin(table, (number, 2), asking(TWO, THREE, offset=9), (ONE,))
    assert table.partitions(number, 3) == asking(TWO, THREE, offset=9)


def test_partition_that_is_named_twice_is_remembered_once(engine: Any) -> None:
    table = engine.SessionCache(10)
    asked = [*asking(ONE, TWO), *asking(ONE, offset=7)]
    _, number, _ = begin(table, (0, 0), asked)
    assert table.partitions(number, 1) == [*asking(ONE, offset=7), *asking(TWO)]


def test_partition_asked_for_and_forgotten_at_once_is_forgotten(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE, TWO)
    begin(table, (number, 1), asking(ONE), (ONE,))
    assert names_of(table, number, 2) == [TWO]


def test_names_and_ids_are_different_partitions(engine: Any) -> None:
    table = engine.SessionCache(10)
    by_id = (b"", b"i" * 16, 0)
    number = create(table, by_id, (b"", b"j" * 16, 0), (b"t", NO_ID, 0))
    begin(table, (number, 1), [], ((b"t", b"i" * 16, 0), by_id))
    assert names_of(table, number, 2) == [(b"", b"j" * 16, 0), (b"t", NO_ID, 0)]


def test_session_of_which_everything_is_forgotten_ends(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    assert begin(table, (number, 1), [], (ONE,)) == (engine.ENDED, 0, 0)
    assert len(table) == 0


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_ends_the_session_it_names(engine: Any, epoch: int) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    outcome, _, _ = begin(table, (number, epoch), asking(ONE))
    assert outcome == (engine.NONE if epoch == -1 else engine.NEW)
    assert begin(table, (number, 1)) == (engine.UNKNOWN, 0, 0)
    assert table.partitions(number, 1) is None


@pytest.mark.parametrize("epoch", [2, 3, 100, -2, 2**31 - 1])
def test_wrong_epoch_is_refused_and_changes_nothing(engine: Any, epoch: int) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    assert begin(table, (number, epoch), asking(TWO), (ONE,)) == (engine.WRONG_EPOCH, 0, 0)
    assert names_of(table, number, 1) == [ONE]
    assert begin(table, (number, 1))[0] == engine.NEXT


def test_names_and_ids_do_not_mix_in_a_session(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    assert begin(table, (number, 1), by_id=True) == (engine.MIXED_NAMES, 0, 0)
    assert begin(table, (number, 1))[0] == engine.NEXT


def test_request_that_was_overtaken_finds_nothing(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    begin(table, (number, 1))
    assert table.partitions(number, 1) is None
    assert table.tell(number, 1, []) is None
    assert table.tell(number, 2, []) == []


def test_full_table_refuses_while_its_sessions_are_young(engine: Any) -> None:
    table = engine.SessionCache(2)
    assert create(table, ONE)
    assert create(table, ONE)
    assert create(table, ONE, TWO, THREE, now_ms=EVICT_AFTER_MS) == 0
    assert len(table) == 2


def test_session_unused_for_long_gives_way(engine: Any) -> None:
    table = engine.SessionCache(2)
    first, second = create(table, ONE, TWO), create(table, ONE, TWO)
    begin(table, (first, 1), now_ms=1)
    assert create(table, ONE, now_ms=EVICT_AFTER_MS + 1)
    assert begin(table, (first, 2), now_ms=EVICT_AFTER_MS + 1)[0] == engine.NEXT
    assert begin(table, (second, 1))[0] == engine.UNKNOWN


def test_old_small_session_gives_way_to_a_larger_one_only(engine: Any) -> None:
    table = engine.SessionCache(2)
    small, large = create(table, ONE), create(table, ONE, TWO, THREE)
    now_ms = EVICT_AFTER_MS + 1
    begin(table, (small, 1), now_ms=now_ms)
    begin(table, (large, 1), now_ms=now_ms)
    assert create(table, ONE, now_ms=now_ms) == 0
    assert create(table, ONE, TWO, now_ms=now_ms)
    assert begin(table, (small, 2))[0] == engine.UNKNOWN
    assert begin(table, (large, 2))[0] == engine.NEXT


def test_table_without_slots_opens_no_session(engine: Any) -> None:
    assert create(engine.SessionCache(0), ONE, now_ms=10 * EVICT_AFTER_MS) == 0


ONE_PART = native.PART_BYTES + len(ONE[0])


def test_engines_count_partitions_alike() -> None:
    assert reference.PART_BYTES == native.PART_BYTES
    assert reference.MOST_BYTES == native.MOST_BYTES
    assert reference.LONGEST_TOPIC == native.LONGEST_TOPIC
    assert reference.MOST_PARTS == native.MOST_PARTS


def test_session_that_has_no_room_is_not_opened(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=3 * ONE_PART)
    assert create(table, ONE, TWO, THREE, FOUR) == 0
    assert create(table, ONE, TWO)
    assert create(table, ONE, TWO) == 0
    assert create(table, (ONE[0] + b"long", NO_ID, 0)) == 0
    assert create(table, ONE)
    assert len(table) == 2


def test_session_larger_than_all_the_room_takes_nobodys_place(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=3 * ONE_PART)
    small = create(table, ONE)
    assert create(table, ONE, TWO, THREE, FOUR, now_ms=EVICT_AFTER_MS + 1) == 0
    assert begin(table, (small, 1))[0] == engine.NEXT


def test_request_that_lists_more_than_all_the_room_gets_no_session(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=3 * ONE_PART)
    assert create(table, ONE, ONE, ONE, ONE) == 0
    assert create(table, ONE, ONE, ONE)


def test_session_remembers_no_name_that_no_topic_has(engine: Any) -> None:
    table = engine.SessionCache(10)
    longest = (b"n" * engine.LONGEST_TOPIC, NO_ID, 0)
    longer = (b"n" * (engine.LONGEST_TOPIC + 1), NO_ID, 0)
    assert create(table, ONE, longer) == 0
    number = create(table, ONE, longest)
    assert begin(table, (number, 1), (), (longer,))[0] == engine.NEXT
    assert begin(table, (number, 2), asking(longer))[0] == engine.UNKNOWN
    assert len(table) == 0


def test_session_is_over_when_it_has_too_many_partitions(engine: Any) -> None:
    table = engine.SessionCache(10)
    half = engine.MOST_PARTS // 2
    number = create(table, *((b"t", NO_ID, index) for index in range(half)))
    more = [(b"t", NO_ID, half + index) for index in range(half)]
    assert begin(table, (number, 1), asking(*more))[0] == engine.NEXT
    assert begin(table, (number, 2), asking((b"u", NO_ID, 0)))[0] == engine.UNKNOWN


def test_sessions_give_way_only_if_that_makes_enough_room(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=4 * ONE_PART)
    small, large = create(table, ONE), create(table, ONE, TWO, THREE)
    now_ms = EVICT_AFTER_MS + 1
    begin(table, (small, 1), now_ms=now_ms)
    begin(table, (large, 1), now_ms=now_ms)
    assert create(table, ONE, TWO, now_ms=now_ms) == 0
    assert [begin(table, (one, 2))[0] for one in (small, large)] == [engine.NEXT] * 2


def test_sessions_unused_for_long_make_room(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=4 * ONE_PART)
    first, second = create(table, ONE, TWO), create(table, THREE)
    assert create(table, ONE, TWO, THREE, FOUR, now_ms=EVICT_AFTER_MS + 1)
    assert [begin(table, (one, 1))[0] for one in (first, second)] == [engine.UNKNOWN] * 2


def test_session_that_outgrows_the_room_is_over_and_gives_it_back(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=3 * ONE_PART)
    small, growing = create(table, ONE), create(table, ONE)
    assert begin(table, (growing, 1), asking(TWO))[0] == engine.NEXT
    assert begin(table, (growing, 2), asking(ONE, TWO))[0] == engine.NEXT
    assert begin(table, (growing, 3), asking(THREE, FOUR), (ONE,))[0] == engine.UNKNOWN
    assert begin(table, (small, 1))[0] == engine.NEXT
    assert create(table, ONE, TWO)


def test_what_is_forgotten_makes_room(engine: Any) -> None:
    table = engine.SessionCache(10, most_bytes=3 * ONE_PART)
    number = create(table, ONE, TWO, THREE)
    assert begin(table, (number, 1), asking(FOUR), (ONE,))[0] == engine.NEXT
    assert begin(table, (number, 2), (), (TWO, THREE))[0] == engine.NEXT
    assert create(table, ONE, TWO)
    assert begin(table, (number, 3), (), (FOUR,))[0] == engine.ENDED
    assert create(table, ONE)


def test_next_request_needs_room_for_all_that_it_lists(engine: Any) -> None:
    for asked, forgotten in ((asking(TWO, TWO), ()), (asking(TWO, THREE), (THREE,))):
        table = engine.SessionCache(10, most_bytes=2 * ONE_PART)
        number = create(table, ONE)
        assert begin(table, (number, 1), asking(ONE, ONE))[0] == engine.NEXT
        # Before any of it is remembered; what it forgets makes room first.
        assert begin(table, (number, 2), asked, forgotten)[0] == engine.UNKNOWN
        number = create(table, ONE)
        assert begin(table, (number, 1), asked, (*forgotten, ONE))[0] == engine.NEXT


def test_large_session_remembers_everything(engine: Any) -> None:
    table = engine.SessionCache(1)
    names = [(b"topic-%d" % (n % 40), NO_ID, n // 40) for n in range(2000)]
    number = create(table, *names)
    assert names_of(table, number, 1) == names
    begin(table, (number, 1), asking(*names[::2], offset=5), tuple(names[1::4]))
    kept = [name for n, name in enumerate(names) if n % 4 != 1]
    assert names_of(table, number, 2) == kept


FNV_START = 2166136261


def unshifted(value: int, by: int) -> int:
    """The 32-bit number that gives `value` when it is combined with itself, shifted down."""
    found = value
    for _ in range(32 // by):
        found = value ^ found >> by
    return found


def clashing_partitions(topic: bytes, start: int) -> list[int]:
    """Partitions of one bucket by a FNV-1a from `start` and mixed, in tables of up to 2**17."""
    mask, prime = 0xFFFFFFFF, 16777619
    inverse, unmix = pow(prime, -1, 1 << 32), pow(2654435769, -1, 1 << 32)
    state = start
    for byte in topic + NO_ID:
        state = (state ^ byte) * prime & mask
    found = []
    for high in range(1 << 15):
        hashed = unshifted(unshifted(high << 17, 13) * unmix & mask, 15)
        number = (hashed * inverse & mask) ^ state
        found.append(number - (1 << 32) if number >> 31 else number)
    return found


def xorshift(state: list[int]) -> list[int]:
    """The next state of xorshift64; each bit is given as the set of first bits it is the sum of."""
    state = [bit ^ (state[at - 13] if at >= 13 else 0) for at, bit in enumerate(state)]
    state = [bit ^ (state[at + 7] if at + 7 < 64 else 0) for at, bit in enumerate(state)]
    return [bit ^ (state[at - 17] if at >= 17 else 0) for at, bit in enumerate(state)]


def first_state_behind(session_ids: list[int]) -> int:
    """The state before those that the ids would be 31 bits of, by elimination."""
    state = [1 << at for at in range(64)]
    solved: dict[int, tuple[int, int]] = {}  # by its highest unknown: a sum of unknowns, its value
    for session_id in session_ids:
        state = xorshift(state)
        for at in range(31):
            terms, value = state[16 + at], session_id >> at & 1
            while terms and terms.bit_length() in solved:
                known = solved[terms.bit_length()]
                terms, value = terms ^ known[0], value ^ known[1]
            if terms:
                solved[terms.bit_length()] = (terms, value)
    found = 0
    for highest, (terms, value) in sorted(solved.items()):
        rest = (terms & found).bit_count() & 1
        found |= (value ^ rest) << (highest - 1)
    return found


def ids_after(first_state: int, count: int) -> list[int]:
    state = [1 << at for at in range(64)]
    found = []
    for _ in range(count):
        state = xorshift(state)
        bits = [(terms & first_state).bit_count() & 1 for terms in state[16:47]]
        found.append(sum(bit << at for at, bit in enumerate(bits)))
    return found


def test_ids_of_some_sessions_do_not_tell_those_of_others(engine: Any) -> None:
    table = engine.SessionCache(10)
    session_ids = [create(table, ONE) for _ in range(6)]
    assert ids_after(first_state_behind(session_ids[:4]), 6)[4:] != session_ids[4:]


def test_partitions_that_were_chosen_to_clash_are_found_as_quickly_as_others() -> None:
    table = native.SessionCache(10)
    session_ids = [create(table, ONE) for _ in range(4)]
    for start in (FNV_START, first_state_behind(session_ids) >> 32 | 1):
        indexes = {topic: clashing_partitions(topic, start) for topic in (b"t", b"u", b"v")}
        names = [(topic, NO_ID, index) for topic, found in indexes.items() for index in found]
        assert len(set(names)) == 3 << 15
        before = time.process_time()
        assert create(table, *names)
        # In one chain they are compared five thousand million times.
        assert time.process_time() - before < 5


# -- what is told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, False),
        ({"has_error": True, "high_watermark": -1, "log_start_offset": -1}, True),
        ({"has_records": True}, True),
        ({"diverges": True}, True),
        ({"high_watermark": 11}, True),
        ({"log_start_offset": 4}, True),
    ],
)
def test_partition_is_told_when_something_has_changed(
    engine: Any, change: dict[str, int], told: bool
) -> None:
    table = engine.SessionCache(1)
    number = create(table, ONE)
    quiet = {"has_error": False, "has_records": False, "diverges": False, "high_watermark": 10,
             "log_start_offset": 3}  # fmt: skip

    def tell(facts: dict[str, int]) -> list[bool] | None:
        return table.tell(number, 1, [(*ONE, *facts.values())])

    assert tell(quiet) == [True]
    assert tell(quiet) == [False]
    assert tell({**quiet, **change}) == [told]
    # Recovery from an error is told, even to the very numbers of before.
    assert tell(quiet) == [told and not ({"has_records", "diverges"} & set(change))]


def test_what_the_client_was_told_outlives_what_it_asks(engine: Any) -> None:
    table = engine.SessionCache(10)
    number = create(table, ONE)
    fact = (*ONE, False, False, False, 50, 3)
    assert table.tell(number, 1, [fact]) == [True]
    begin(table, (number, 1), [(*ONE, 7, 8, 9, 10, 11)])
    assert table.partitions(number, 2) == [(*ONE, 7, 8, 9, 10, 11)]
    assert table.tell(number, 2, [fact]) == [False]


def test_those_with_records_go_to_the_end_of_the_line(engine: Any) -> None:
    table = engine.SessionCache(1)
    number = create(table, ONE, TWO, THREE)
    facts = [(*name, False, name != TWO, False, 1, 0) for name in (ONE, TWO, FOUR)]
    assert table.tell(number, 1, facts) == [True, True, False]
    assert names_of(table, number, 1) == [TWO, THREE, ONE]


def test_reference_wraps_epochs_to_1() -> None:
    table = reference.SessionCache(10)
    number = create(table, ONE)
    table._sessions[number].epoch = reference.MAX_EPOCH
    assert begin(table, (number, reference.MAX_EPOCH)) == (reference.NEXT, number, 1)


# -- against each other


NAMES = [ONE, TWO, THREE, FOUR]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # which session, by age; 4: one that there is not
        st.sampled_from(["next", "next", "next", "wrong", "full", "final"]),
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 99)),
        st.lists(st.sampled_from(NAMES), max_size=2),
        st.sampled_from([False] * 9 + [True]),
        st.sampled_from([0, 1, 1000, EVICT_AFTER_MS // 2, EVICT_AFTER_MS + 1]),
        st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(0, 3))),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(st.integers(0, 3), st.sampled_from([native.MOST_BYTES, 6 * ONE_PART, 3 * ONE_PART]), STEPS)
def test_native_agrees_with_reference(slots: int, most_bytes: int, steps: list[tuple]) -> None:
    kernel, model = (
        engine.SessionCache(slots, most_bytes=most_bytes, seed=1) for engine in (native, reference)
    )
    numbers: list[tuple[int, int]] = []  # of the same sessions, in either
    epochs: dict[tuple[int, int], int] = {}
    now_ms = 0
    for which, kind, offsets, forgotten, by_id, passed_ms, read in steps:
        now_ms += passed_ms
        pair = numbers[which] if which < len(numbers) else (0, 0)
        right = epochs.get(pair, 1)
        epoch = {"next": right, "wrong": right + 1, "full": 0, "final": -1}[kind]
        asked = [(*name, at, 10, -1, -1, at // 2) for name, at in offsets.items()]
        found, expected = (
            table.begin(number, epoch, asked, forgotten, by_id=by_id, now_ms=now_ms)
            for table, number in zip((kernel, model), pair, strict=True)
        )
        assert found == expected
        assert len(kernel) == len(model) <= slots
        if found[0] == native.NEW:
            pair = (found[1], expected[1])
            numbers.append(pair)
        if found[0] not in (native.NEW, native.NEXT):
            continue
        epochs[pair] = found[2]
        facts = [(*name, False, records, False, end, 0) for name, records, end in read]
        assert kernel.tell(pair[0], found[2], facts) == model.tell(pair[1], found[2], facts)
        assert kernel.partitions(pair[0], found[2]) == model.partitions(pair[1], found[2])
