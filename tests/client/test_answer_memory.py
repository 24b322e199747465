"""Buffers of answers are used again, and never while somebody looks into them."""

from __future__ import annotations

from plog.client.answer_memory import KEPT_BUFFERS, WORTH_KEEPING_BYTES, AnswerMemory

LARGE = 2 * WORTH_KEEPING_BYTES


def test_buffer_is_used_again_once_its_views_are_gone():
    memory = AnswerMemory()
    first = memory.take(LARGE)
    view = memoryview(first)[10:20]
    second = memory.take(LARGE)
    assert second is not first
    view.release()
    assert memory.take(LARGE) is first
    assert len(first) == LARGE


def test_smaller_answer_takes_the_larger_buffer_and_a_larger_one_does_not():
    memory = AnswerMemory()
    first = memory.take(LARGE)
    assert memory.take(100) is first
    assert memory.take(LARGE + 1) is not first


def test_no_more_than_two_are_kept_whatever_is_held():
    memory = AnswerMemory()
    held = [memoryview(memory.take(LARGE)) for _ in range(5)]
    assert len({id(view.obj) for view in held}) == 5
    for view in held:
        view.release()
    again = {id(memory.take(LARGE)) for _ in range(3)}
    assert len(again) == 1
    assert len(memory._kept) == KEPT_BUFFERS


def test_small_answers_are_not_kept():
    memory = AnswerMemory()
    assert memory.take(100) is not memory.take(100)
