"""Whose the topics of a store are, while they go from a Kafka broker to plog and back.

`plog adopt` carries them over and `plog adopt --give-back` returns them; a broker that
started in between, or behind that, would serve what is half there or another's. One node of
the store says how far they are, and which topics both sides know.
"""

from __future__ import annotations

import uuid
from enum import Enum

from plog.cluster.store import DeleteOp, Store, join
from plog.errors import InconsistentLogDirs

STATE = "/plog/adoption"
SHARED = "/plog/shared_topics"
"""Has a child for each topic that was carried over, with its id: if it is gone, it was deleted."""


class AdoptionState(Enum):
    """How far the topics are; a store that was never adopted has no state."""

    ADOPTING = b"adopting"
    ADOPTED = b"adopted"
    GIVEN_BACK = b"given back"


def read_state(store: Store) -> AdoptionState | None:
    """Return the state, None where nothing was ever adopted or given back."""
    return None if store.exists(STATE) is None else AdoptionState(store.get(STATE)[0])


def write_state(store: Store, state: AdoptionState) -> None:
    """Say how far the topics are."""
    store.ensure(STATE)
    store.set(STATE, state.value)


def check_may_start(store: Store) -> None:
    """Check that a broker may serve what the store knows.

    Raises:
        InconsistentLogDirs: the topics are half here, or Kafka's again.
    """
    state = read_state(store)
    if state is AdoptionState.ADOPTING:
        raise InconsistentLogDirs(
            "plog adopt was interrupted: run it again before the broker starts"
        )
    if state is AdoptionState.GIVEN_BACK:
        raise InconsistentLogDirs(
            "the topics were given back to Kafka: run plog adopt to take them over again"
        )


def share(store: Store, topic: str, topic_id: uuid.UUID | None) -> None:
    """Note that both sides know a topic."""
    store.ensure(join(SHARED, topic))
    store.set(join(SHARED, topic), str(topic_id).encode())


def is_shared(store: Store, topic: str, topic_id: uuid.UUID | None) -> bool:
    """Tell whether both sides once knew a topic, and not a namesake of it."""
    path = join(SHARED, topic)
    return store.exists(path) is not None and store.get(path)[0] == str(topic_id).encode()


def unshare(store: Store, topic: str) -> None:
    """Forget a topic that neither side has any more."""
    store.multi([DeleteOp(join(SHARED, topic))])
