"""kafka-dump-log: print the batches and records of log segments, and the entries of indexes."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plog._native import batch, records
from plog._native.batch import BatchHeader
from plog.cli.kafka.java_data import deserializer
from plog.cli.kafka.options import Given, Options, java_integer, number_fault
from plog.errors import CorruptRecord
from plog.ops.dump_log import dump as dump_file
from plog.storage.producer_load import read_marker

OPTIONS = Options(
    "Print the batches and records of log segments, and the entries of indexes.",
    """
    --files FILE,...               Files of a log. Required.
    --print-data-log               Print the records, too.
    --deep-iteration               Print the records without their keys and values.
    --skip-record-metadata         Print only the keys and values of records.
    --key-decoder-class [CLASS]    Class that decodes keys.
    --value-decoder-class [CLASS]  Class that decodes values.
    --max-bytes BYTES              Stop after these bytes of a segment.
    --max-message-size BYTES       Accepted and ignored.
    --index-sanity-check           Only check indexes.
    --verify-index-only            Only check indexes against their segments.
    --offsets-decoder              Not supported.
    --transaction-log-decoder      Not supported.
    --cluster-metadata-decoder     Not supported.
    --remote-log-metadata-decoder  Not supported.
    """,
)
DECODERS = (
    "offsets-decoder",
    "transaction-log-decoder",
    "cluster-metadata-decoder",
    "remote-log-metadata-decoder",
)
STRING_DECODERS = ("org.apache.kafka.tools.api.StringDecoder", "kafka.serializer.StringDecoder")
INDENT = "|"
CODEC_NAMES = dict(enumerate(("none", "gzip", "snappy", "lz4", "zstd")))
Decode = Callable[[bytes], bytes]


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    given.require("files")
    for option in DECODERS:
        if given.has(option):
            raise ValueError(f"--{option} is not supported")
    shown = _Records(given)
    for name in given.text("files").split(","):
        path = Path(name)
        print(f"Dumping {path}")
        sys.stdout.flush()
        if path.suffix == ".log":
            _dump_log(path, shown, given.integer("max-bytes"))
        elif path.suffix in (".index", ".timeindex"):
            _dump_index(
                path,
                only_checks=given.has("index-sanity-check"),
                only_faults=given.has("verify-index-only"),
            )
        else:
            sys.stderr.write(f"Ignoring unknown file {path}\n")
    return 0


@contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view


def _base_offset(path: Path) -> int:
    number = java_integer(path.name.partition(".")[0], 64)
    if number is None:
        number_fault(path.name.partition(".")[0])
    return number


# -- segments ----------------------------------------------------------------------------------


class _Records:
    """Which parts of records are printed, and how."""

    def __init__(self, given: Given) -> None:
        decoders = ("key-decoder-class", "value-decoder-class")
        self.has_data = given.has("print-data-log") or any(map(given.has, decoders))
        self.is_deep = self.has_data or given.has("deep-iteration")
        self.has_metadata = not given.has("skip-record-metadata")
        self.key, self.value = (_decoder(given.text(name)) for name in decoders)


def _decoder(class_name: str) -> Decode:
    known = not class_name or class_name in STRING_DECODERS
    return (lambda data: data) if known else deserializer(class_name)


def _dump_log(path: Path, shown: _Records, most: int | None) -> None:
    start = _base_offset(path)
    print(f"Log starting offset: {start}")
    with _opened(path) as data:
        position, size = 0, len(data) if most is None else min(most, len(data))
        while position < size:
            try:
                header = batch.read_header(data, position)
            except CorruptRecord:
                break
            if position + header.size_bytes > size:
                break
            is_valid = _is_valid(data, position)
            print(_batch_line(header, is_valid=is_valid))
            if shown.is_deep and is_valid:
                _print_records(data, header, shown)
            position += header.size_bytes
        if most is None and position < len(data):
            print(f"Found {len(data) - position} invalid bytes at the end of {path.name}")


def _is_valid(data: memoryview, position: int) -> bool:
    try:
        batch.check_batch(data, position)
    except CorruptRecord:
        return False
    return True


def _batch_line(header: BatchHeader, *, is_valid: bool) -> str:
    horizon = "OptionalLong.empty"
    if header.has_delete_horizon:
        horizon = f"OptionalLong[{header.base_timestamp}]"
    fields = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.records_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": _flag(header.is_transactional),
        "isControl": _flag(header.is_control),
        "deleteHorizonMs": horizon,
        "position": header.position,
        _time_name(header): header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": CODEC_NAMES.get(header.codec, str(header.codec)),
        "crc": header.crc,
        "isvalid": _flag(is_valid),
    }
    return " ".join(f"{name}: {value}" for name, value in fields.items())


def _flag(value: bool) -> str:
    return str(value).lower()


def _time_name(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _print_records(data: memoryview, header: BatchHeader, shown: _Records) -> None:
    out = sys.stdout
    for number, record in enumerate(records.walk(data, pos=header.position)):
        parts: list[bytes] = []
        if shown.has_metadata:
            sequence = header.base_sequence
            keys = ",".join(name for name, _ in record.headers)
            parts.append(
                f"{INDENT} offset: {record.offset} {_time_name(header)}: {record.timestamp}"
                f" keySize: {_size(record.key)} valueSize: {_size(record.value)}"
                f" sequence: {sequence if sequence < 0 else _sequence(sequence, number)}"
                f" headerKeys: [{keys}]".encode(errors="replace")
            )
        if header.is_control:
            parts.append(_marker(data, header).encode())
        elif shown.has_data:
            if record.key is not None:
                first = b"" if shown.has_metadata else f"{INDENT} ".encode()
                parts.append(first + b"key: " + shown.key(record.key))
            first = b"" if parts else b" "
            parts.append(first + b"payload: " + shown.value(record.value or b""))
        out.flush()
        out.buffer.write(b" ".join(parts) + b"\n")
    out.buffer.flush()


def _sequence(base: int, number: int) -> int:
    """Return the sequence of a record; they wrap to 0 behind the largest int."""
    return (base + number) & 0x7FFFFFFF


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _marker(data: memoryview, header: BatchHeader) -> str:
    marker = read_marker(data[header.position : header.position + header.size_bytes])
    if marker is None:
        return "controlType: UNKNOWN"
    kind = "ABORT" if marker.abort else "COMMIT"
    return f"endTxnMarker: {kind} coordinatorEpoch: {marker.coordinator_epoch}"


# -- indexes -----------------------------------------------------------------------------------


def _dump_index(path: Path, *, only_checks: bool, only_faults: bool) -> None:
    """Print the entries of an index, and those that its segment contradicts."""
    is_time = path.suffix == ".timeindex"
    _base_offset(path)
    if not path.stat().st_size and not is_time:
        print(f"{path} is empty.")
        return
    faults = []
    for found in dump_file(path, compare=not only_checks):
        if found.is_damage:
            faults.append(f"  at {found.at}: {found.fields['why']}")
        elif found.at is not None and not only_checks and not only_faults:
            first = "timestamp" if is_time else "offset"
            second = "offset" if is_time else "position"
            print(f"{first}: {found.fields[first]} {second}: {found.fields[second]}")
    if faults:
        print("\n".join([f"Mismatches in :{path}", *faults]))
    elif only_checks:
        print(f"{path} passed sanity check.")
