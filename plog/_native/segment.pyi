class Segment:
    """A segment's files as the data path sees them. Immutable but for the active one, which only
    grows.

    Takes the descriptors over; they are closed when the last pin goes. Index entries are read
    through mappings made on first use, of a length fixed at creation (`max_index_bytes`), so that a
    mapping is never remade.
    """

    def __init__(
        self,
        base_offset: int,
        *,
        log_fd: int,
        offset_index_fd: int,
        time_index_fd: int,
        size_bytes: int,
        next_offset: int,  # base_offset when empty
        offset_entries: int,
        time_entries: int,
        max_timestamp: int,  # -1 when empty
        max_timestamp_offset: int,
        bytes_since_index_entry: int,
        # Largest timestamp of the first batch, or -1: what roll by time counts from.
        first_append_ms: int,
        max_index_bytes: int,
    ) -> None: ...
    base_offset: int
    size_bytes: int
    next_offset: int
    offset_entries: int
    time_entries: int
    max_timestamp: int
    max_timestamp_offset: int
    first_append_ms: int
    def lookup_offset(self, target: int) -> tuple[int, int]: ...
    def lookup_time(self, timestamp: int) -> tuple[int, int]: ...
    def read(self, position: int, size: int) -> bytes:
        """Raw bytes of the log file, for scans by Python. Raises OSError."""
    def seal(self) -> None:
        """The segment is no longer active: append the final time index entry (Kafka does so on roll
        and close).

        Does nothing when the last entry says it already. Raises OSError, with the file cut back.
        """
    def sync_indexes(self) -> None:
        """fdatasync both index files, before a recovery point moves past the segment. Raises
        OSError.
        """

class FileRange:
    """Bytes of a segment, pinned: the reactor sends it by sendfile, others read it."""

    size: int
    position: int
    next_offset_hint: int  # where the next batch starts; -1 when the range was cut by its size
    def __len__(self) -> int: ...
    def end_offset(self) -> int:
        """An offset that its batches lie below: of the next one, or of the nearest in the index.

        Raises OSError when the index cannot be mapped.
        """
    def next_offset(self) -> int:
        """Return the offset behind the last whole batch.

        -1: that needs the disk, or a header is damaged.
        """
    def is_resident(self) -> bool:
        """Whether the bytes are in the page cache, by samples: sending them then keeps nobody
        waiting.
        """
    def read_through(self) -> None:
        """Have the disk bring the bytes into the page cache, without the interpreter lock. What
        cannot be read is found again, and told, by who sends it.
        """
    def read(self, max_bytes: int = ...) -> bytes:
        """Return the first bytes. Raises OSError, also when the file has been cut since."""
