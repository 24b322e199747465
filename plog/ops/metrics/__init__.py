"""The metrics page of a broker: a collector for each part of it, written by prometheus-client."""
