"""The APIs that clients are served: all but those between brokers."""

from __future__ import annotations

from plog.handlers.registry import load

SERVED = {key: handler for key, handler in load().items() if not handler.between_brokers}
"""By API key. `tests/cluster/test_broker_requests.py` has the others."""
