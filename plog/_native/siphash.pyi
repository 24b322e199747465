def siphash(key: bytes, data: bytes) -> int:
    """Hash `data` under a key of 16 bytes by SipHash-1-3; an unsigned 64-bit value."""
