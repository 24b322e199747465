"""Tools around the broker: pages from declarations, log files read, log lines."""
