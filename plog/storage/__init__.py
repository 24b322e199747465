"""Logs on disk: Kafka's files, their recovery, retention and checkpoints."""
