"""plog's command line, whose broker is the oracle's."""

from __future__ import annotations

from plog import server
from plog.cli import main
from tests.oracle.broker import OracleBroker

server.Broker = OracleBroker  # type: ignore[misc]

if __name__ == "__main__":
    main()
