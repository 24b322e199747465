"""The partition that keeps a group, as Java computes it."""

from __future__ import annotations

import pytest

from plog.coordinator.group_hash import java_hash, partition_of

FROM_JAVA = {
    "": 0,
    "a": 97,
    "my-group": -1906497762,
    "polygenelubricants": 0,  # whose hash is the smallest int
    "console-consumer-12345": 158455506,
    "\u00fc": 252,
    "\U0001f600": 1772899,
}


@pytest.mark.parametrize("text", FROM_JAVA)
def test_hash_is_javas(text: str) -> None:
    assert java_hash(text) == FROM_JAVA[text]


@pytest.mark.parametrize("text", FROM_JAVA)
def test_partition_is_within_the_topic(text: str) -> None:
    assert partition_of(text, 50) == abs(FROM_JAVA[text]) % 50
