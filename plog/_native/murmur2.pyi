from plog.types import Buffer

def murmur2(data: Buffer) -> int:
    """Hash `data` as Kafka's default partitioner does; an unsigned 32-bit value."""
