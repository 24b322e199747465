"""Tools around the broker: pages generated from declarations, and the reading of log files."""
