"""Elections as an administrator asks for them."""

from __future__ import annotations

from plog.client.admin import Admin
from plog.errors import ErrorCode, error_for
from plog.protocol.messages.topics import ElectLeadersRequest, ElectLeadersResponse

PREFERRED = 0


class Elections(Admin):
    """Asks for elections, which the client has no call for."""

    def elect_preferred(self) -> None:
        """Have every partition led by its preferred leader, if that one is in sync."""
        request = ElectLeadersRequest(
            election_type=PREFERRED, topic_partitions=None, timeout_ms=self._timeout_ms
        )
        self._by_controller(request, ElectLeadersResponse, _check)


def _check(answer: ElectLeadersResponse) -> None:
    if answer.error_code != ErrorCode.NONE:
        raise error_for(answer.error_code, "election")
