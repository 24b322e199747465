"""Kafka's scripts without a JVM: their names, options, output and exit status.

Each module is one script, and has `OPTIONS` and `run`. `__main__` finds the module by the script's
name and turns its errors into Kafka's output. The scripts use `plog.client`; the words of
`plog`'s own commands are not theirs.
"""
