from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from plog.storage.durable_ends import (
    DurableEnds,
    SlotKey,
    decode_slot,
    encode_slot,
)
from plog.storage.filesystem import Filesystem

from .failing_files import FailingFilesystem

ONE, TWO, THREE = (SlotKey(uuid.UUID(int=number << 64), number) for number in (1, 2, 3))


def opened(path: Path) -> DurableEnds:
    ends = DurableEnds(Filesystem(), path)
    ends.open()
    return ends


def write(ends: DurableEnds, key: SlotKey, end: int) -> None:
    Filesystem().pwrite(ends.fd, encode_slot(key, end), ends.position_for(key))


def test_slot_is_as_the_format_says() -> None:
    data = encode_slot(SlotKey(uuid.UUID(bytes=bytes(range(16))), 258), 1 << 40)
    assert data[:-4] == bytes(range(16)) + b"\0\0\1\2" + b"\0\0\1\0\0\0\0\0"
    assert len(data) == 32
    assert decode_slot(data) == (SlotKey(uuid.UUID(bytes=bytes(range(16))), 258), 1 << 40)


def test_slot_with_any_flipped_bit_is_free() -> None:
    data = encode_slot(ONE, 4711)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_slot(bytes(flipped)) is None


def test_free_slot_and_prefixes_are_no_slots() -> None:
    assert decode_slot(bytes(32)) is None
    data = encode_slot(ONE, 5)
    assert all(decode_slot(data[:cut]) is None for cut in range(32))


def test_ends_are_found_again(tmp_path: Path) -> None:
    ends = opened(tmp_path / "e")
    write(ends, ONE, 10)
    write(ends, TWO, 20)
    assert ends.position_for(ONE) == 0
    assert ends.position_for(TWO) == 32
    ends.close()
    again = opened(tmp_path / "e")
    assert (again.durable_end(ONE), again.durable_end(TWO)) == (10, 20)
    assert again.durable_end(THREE) is None
    assert again.position_for(TWO) == 32
    assert again.position_for(THREE) == 64
    again.close()


def test_released_slot_is_used_again_and_forgotten(tmp_path: Path) -> None:
    ends = opened(tmp_path / "e")
    write(ends, ONE, 10)
    write(ends, TWO, 20)
    ends.release(ONE)
    assert ends.keys() == [TWO]
    assert ends.position_for(THREE) == 0
    ends.release(THREE)
    ends.close()
    again = opened(tmp_path / "e")
    assert again.keys() == [TWO]
    assert again.durable_end(ONE) is None
    again.close()


def test_slot_whose_release_fails_is_still_its_partitions(tmp_path: Path) -> None:
    fs = FailingFilesystem(0, errno.ENOSPC)
    ends = DurableEnds(fs, tmp_path / "e")
    ends.open()
    write(ends, ONE, 10)
    with fs.armed(), pytest.raises(OSError, match="No space"):
        ends.release(ONE)
    assert ends.position_for(ONE) == 0
    ends.release(ONE)
    assert ends.keys() == []
    ends.close()


@pytest.mark.parametrize("cut", [0, 1, 31, 33, 63])
def test_torn_slot_is_unknown_and_its_place_is_free(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "e"
    path.write_bytes((encode_slot(ONE, 1) + encode_slot(TWO, 2))[:cut])
    ends = opened(path)
    assert ends.durable_end(TWO) is None
    assert ends.durable_end(ONE) == (1 if cut >= 32 else None)
    write(ends, THREE, 3)
    ends.close()
    again = opened(path)
    assert again.durable_end(THREE) == 3
    again.close()


def test_two_slots_of_one_partition_become_one_with_the_higher_end(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(encode_slot(ONE, 5) + encode_slot(ONE, 9))
    ends = opened(path)
    assert ends.durable_end(ONE) == 9
    ends.close()
    assert path.read_bytes() == encode_slot(ONE, 5) + bytes(32)


def test_garbage_file_is_all_free(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(bytes(range(256)) * 3)
    ends = opened(path)
    assert ends.keys() == []
    ends.close()
