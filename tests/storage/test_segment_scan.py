from __future__ import annotations

import struct
from pathlib import Path

import pytest

from plog._native import crc32c
from plog.errors import CorruptRecord
from plog.storage import segment_scan
from plog.storage.filesystem import Filesystem
from plog.storage.segment_scan import (
    BatchReader,
    find_batch,
    is_zero,
    reader_of,
    walk_headers,
)

from .storage_logs import batch

FS = Filesystem()


def placed(*offsets: int, size: int = 100) -> list[bytes]:
    batches = []
    for offset in offsets:
        data = batch(2, value=b"v" * size)
        data[:8] = offset.to_bytes(8, "big")
        batches.append(bytes(data))
    return batches


@pytest.fixture(params=[1 << 20, 300])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Whole file in one chunk, and batches across many."""
    monkeypatch.setattr(segment_scan, "CHUNK_BYTES", request.param)
    return int(request.param)


def scan(path: Path, data: bytes) -> tuple[BatchReader, list[int]]:
    path.write_bytes(data)
    with FS.opened(path) as fd:
        reader = BatchReader(reader_of(FS, fd), 0, len(data))
        offsets = [scanned.header.base_offset for scanned in reader]
    return reader, offsets


@pytest.mark.usefixtures("chunk_bytes")
def test_every_cut_is_found_at_the_last_batch_boundary(tmp_path: Path) -> None:
    batches = placed(0, 2, 4)
    data = b"".join(batches)
    boundaries = [0, len(batches[0]), len(batches[0]) * 2, len(data)]
    for cut in range(len(data) + 1):
        reader, offsets = scan(tmp_path / "log", data[:cut])
        whole = sum(end <= cut for end in boundaries[1:])
        assert len(offsets) == whole
        assert reader.position == boundaries[whole]
        if cut in boundaries:
            assert reader.fault is None
        else:
            assert reader.fault is not None
            assert reader.is_cut


@pytest.mark.usefixtures("chunk_bytes")
def test_every_flipped_byte_but_offset_and_epoch_is_found(tmp_path: Path) -> None:
    batches = placed(0, 2, 4)
    data = b"".join(batches)
    size = len(batches[0])
    for at in range(size, 2 * size):
        flipped = bytearray(data)
        flipped[at] ^= 0x41
        reader, _ = scan(tmp_path / "log", bytes(flipped))
        if at - size < 8 or 12 <= at - size < 16:
            # The CRC does not cover base_offset and leader epoch; who reads checks the order.
            continue
        assert reader.fault is not None, at
        assert reader.position == size


def test_zero_tail_is_a_fault_and_known_as_zero(tmp_path: Path) -> None:
    data = b"".join(placed(0, 2))
    reader, offsets = scan(tmp_path / "log", data + bytes(5000))
    assert offsets == [0, 2]
    assert reader.position == len(data)
    with FS.opened(tmp_path / "log") as fd:
        assert is_zero(FS, fd, len(data), len(data) + 5000)
        assert not is_zero(FS, fd, len(data) - 2, len(data) + 5000)


def test_huge_length_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_scan, "WHOLE_BATCH_BYTES", 1000)
    monkeypatch.setattr(segment_scan, "CHUNK_BYTES", 1000)
    lying = bytearray(placed(0)[0])
    lying[8:12] = (100_000 - 12).to_bytes(4, "big")
    path = tmp_path / "log"
    path.write_bytes(bytes(lying) + bytes(100_000 - len(lying)))
    largest = 0

    def read(position: int, size: int) -> bytes:
        nonlocal largest
        largest = max(largest, size)
        with FS.opened(path) as fd:
            return FS.pread(fd, size, position)

    reader = BatchReader(read, 0, 100_000)
    assert list(reader) == []
    assert reader.fault == "a batch of 100000 bytes whose CRC does not match"
    assert largest <= 1000


def test_large_batch_with_a_right_crc_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_scan, "WHOLE_BATCH_BYTES", 1000)
    monkeypatch.setattr(segment_scan, "CHUNK_BYTES", 1000)
    reader, offsets = scan(tmp_path / "log", b"".join(placed(0, 2, size=5000)))
    assert offsets == [0, 2]
    assert reader.fault is None


@pytest.mark.parametrize("chunk", [61, 100, 4096])
def test_walk_headers_steps_over_records(chunk: int) -> None:
    data = b"".join(placed(0, 2, 4))

    def read(position: int, size: int) -> bytes:
        return data[position : position + size]

    found = list(walk_headers(read, 0, len(data), chunk_bytes=chunk))
    size = len(data) // 3
    assert [(at, header.base_offset) for at, header in found] == [(0, 0), (size, 2), (2 * size, 4)]


def test_walk_headers_refuses_a_cut_and_a_bad_header() -> None:
    data = b"".join(placed(0, 2))
    for end in range(len(data) // 2 + 1, len(data)):
        with pytest.raises(CorruptRecord, match="batch at"):
            list(walk_headers(lambda at, size: data[at : at + size], 0, end))
    bad = data[: len(data) // 2] + bytes(100)
    with pytest.raises(CorruptRecord, match="magic 0"):
        list(walk_headers(lambda at, size: bad[at : at + size], 0, len(bad)))


@pytest.mark.usefixtures("chunk_bytes")
def test_find_batch_finds_one_at_any_distance(tmp_path: Path) -> None:
    (valid,) = placed(100)
    path = tmp_path / "log"
    for junk in (0, 1, 60, 61, 239, 240, 299, 300, 301, 1000):
        path.write_bytes(b"\x02" * junk + valid + b"\x02" * 40)
        with FS.opened(path) as fd:
            assert find_batch(FS, fd, 0, path.stat().st_size, 100) == junk
            assert find_batch(FS, fd, junk + 1, path.stat().st_size, 100) is None


@pytest.mark.parametrize("least", [101, 100 - (1 << 31)])
def test_find_batch_ignores_offsets_that_do_not_belong(tmp_path: Path, least: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"junk" + placed(100)[0])
    with FS.opened(path) as fd:
        assert find_batch(FS, fd, 0, path.stat().st_size, least) is None


def test_find_batch_wants_the_whole_batch_and_its_crc(tmp_path: Path) -> None:
    (valid,) = placed(100)
    path = tmp_path / "log"
    for data in (valid[:-1], valid[:-1] + b"\1"):
        path.write_bytes(b"junk" + data)
        with FS.opened(path) as fd:
            assert find_batch(FS, fd, 0, path.stat().st_size, 0) is None


def test_headers_are_read_as_struct_lays_them_out() -> None:
    """Guards the helpers of these tests: what `batch` builds is what the format says."""
    (data,) = placed(7)
    offset, length, _, magic, crc = struct.unpack_from(">qiibI", data)
    assert (offset, length, magic) == (7, len(data) - 12, 2)
    assert crc == crc32c.crc32c(data[21:])
