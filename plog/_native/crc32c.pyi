from plog.types import Buffer

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def implementation() -> str:
    """Name the code chosen at run time: ``sse4.2``, ``armv8`` or ``table``."""

def _implementations() -> tuple[str, ...]:
    """Names of all implementations this processor can run, the fastest first."""

def _crc32c_with(name: str, data: Buffer, crc: int = 0) -> int:
    """`crc32c` by the named implementation, for the agreement tests."""
