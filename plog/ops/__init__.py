"""The operators' tools: checks, pages, metrics, bundles, dumps, loads, log lines."""
