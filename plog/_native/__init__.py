"""The Cython kernels: bytes in, numbers out, without the interpreter lock and without policy.

There is no fallback: a silently slower broker is an incident. The readable
twins in `plog._reference` are the oracle of the agreement tests.
"""
