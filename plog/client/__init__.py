"""The client library: admin, producer and consumer of assigned partitions, all synchronous."""
