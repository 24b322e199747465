"""plog: a distributed commit log that speaks the Kafka protocol."""

__version__ = "0.1.0"
"""The release; bin/wheel and bin/deb put the build behind it (0.1.0+20260131123456.g68165c8f00)."""
