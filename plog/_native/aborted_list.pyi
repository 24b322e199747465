from collections.abc import Sequence

class PublishedAborted:
    """Aborted transactions, as both planes share them: to be published to a partition.

    `ended` are entries of a transaction index, in the order of their markers; `ending` the producer
    id and the first offset of each whose marker is being written. Who reads from below `known_from`
    may meet others. Raises ValueError if `ended` ends within an entry.
    """

    def __init__(
        self, ended: bytes, ending: Sequence[tuple[int, int]], known_from: int
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def known_from(self) -> int: ...
    def overlapping(self, fetch_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """Producer ids and first offsets of those with records or their marker in a range, as the
        fast path tells its readers.
        """
