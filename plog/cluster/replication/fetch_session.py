"""A follower's fetch session with one leader, as it is asked for (KIP-227): pure.

Within a session a request names only the partitions whose position has changed, and the response
only those with something new. Both ends count the requests, so a lost one is noticed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from plog.errors import ErrorCode
from plog.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
OPENS_SESSION: Final = 0
"""As an epoch."""
LAST_EPOCH: Final = 2**31 - 1


class Fetchable(NamedTuple):
    """A partition by its topic's id."""

    topic_id: uuid.UUID
    partition: int


class SessionRequest(NamedTuple):
    """The fields of a Fetch that belong to its session."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]


class FetchSession:
    """What the leader remembers of this follower's requests. Used by one thread."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = OPENS_SESSION
        self._remembered: dict[Fetchable, FetchPartition] = {}

    def request(self, wanted: Mapping[Fetchable, FetchPartition]) -> SessionRequest:
        """Return the request for exactly these partitions."""
        if self._id == NO_SESSION:
            news, gone = dict(wanted), []
        else:
            news = {
                one: asked for one, asked in wanted.items() if self._remembered.get(one) != asked
            }
            gone = [one for one in self._remembered if one not in wanted]
        self._remembered = dict(wanted)
        return SessionRequest(self._id, self._epoch, _topics(news), _forgotten(gone))

    def answered(self, error_code: int, session_id: int) -> bool:
        """Take the response's error and session; return whether the session goes on.

        After False the next request opens another one.
        """
        if error_code != ErrorCode.NONE or session_id == NO_SESSION:
            self.end()
            return False
        if session_id == self._id:
            self._epoch = self._epoch + 1 if self._epoch < LAST_EPOCH else 1
        else:
            self._id, self._epoch = session_id, 1
        return True

    def end(self) -> None:
        """Forget the session: there was no response, and the leader may have counted or not."""
        self._id, self._epoch = NO_SESSION, OPENS_SESSION
        self._remembered = {}


def _topics(asked: Mapping[Fetchable, FetchPartition]) -> list[FetchTopic]:
    topics: dict[uuid.UUID, FetchTopic] = {}
    for one, partition in asked.items():
        topic = topics.setdefault(one.topic_id, FetchTopic(topic_id=one.topic_id, partitions=[]))
        topic.partitions.append(partition)
    return list(topics.values())


def _forgotten(gone: list[Fetchable]) -> list[ForgottenTopic]:
    topics: dict[uuid.UUID, ForgottenTopic] = {}
    for one in gone:
        topic = topics.setdefault(
            one.topic_id, ForgottenTopic(topic_id=one.topic_id, partitions=[])
        )
        topic.partitions.append(one.partition)
    return list(topics.values())
