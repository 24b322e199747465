class TopicTraffic:
    """Counters of one topic. Safe from any thread."""

    def received(self, records: int, size_bytes: int) -> None:
        """Count a batch of a producer that was appended."""
    def sent(self, records: int, size_bytes: int) -> None:
        """Count batches in a response to a consumer."""
    @property
    def received_records(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_records(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
