def upper_bounds() -> tuple[int, ...]:
    """Return the last microsecond that falls in each bucket but the last, which is open."""

class Histogram:
    """How often things took how long. Safe from any thread."""

    def note(self, us: int) -> None:
        """One more, that took so many microseconds; less than none is none."""
    def add_all(self, other: Histogram) -> None:
        """Add all that another one has."""
    @property
    def counts(self) -> tuple[int, ...]:
        """How many fell in each bucket."""
    @property
    def total_us(self) -> int:
        """What all took together."""
