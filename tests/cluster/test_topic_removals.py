"""A write that began on a deleted topic does not change its successor."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from plog.cluster import znodes
from plog.cluster.config_admin import ConfigAdmin
from plog.cluster.controller_store import ControllerStore
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Store
from plog.cluster.topic_admin import NewTopic, TopicAdmin
from plog.cluster.znodes import ConfigEntity, TopicNode, decode_config
from plog.errors import KafkaError, UnknownTopicId, UnknownTopicOrPartition
from plog.runtime.clock import ManualClock
from plog.settings.alterations import Alteration, Operation
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from tests.cluster.test_topic_admin import register

NAME = "t"
OLD, NEW = {"retention.ms": "1"}, {"retention.bytes": "2"}
SETTINGS = DynamicSettings(BrokerSettings({"broker.id": "0"}))


class Interrupted:
    """A store that does something before one of the calls that it passes on."""

    def __init__(
        self, store: Store, at_call: int, meanwhile: Callable[[], uuid.UUID | None]
    ) -> None:
        self._store = store
        self._calls_left = at_call
        self._meanwhile = meanwhile
        self.was_interrupted = False
        self.new: uuid.UUID | None = None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def passed_on(*args: Any, **kwargs: Any) -> Any:
            if self._calls_left == 0:
                self.was_interrupted = True
                self.new = self._meanwhile()
            self._calls_left -= 1
            return call(*args, **kwargs)

        return passed_on


def grow(store: Any, topic_id: uuid.UUID) -> uuid.UUID | None:
    return TopicAdmin(store, SETTINGS).create_partitions(NAME, 3)


def delete_by_name(store: Any, topic_id: uuid.UUID) -> uuid.UUID | None:
    return TopicAdmin(store, SETTINGS).delete(NAME)


def delete_by_id(store: Any, topic_id: uuid.UUID) -> uuid.UUID | None:
    return TopicAdmin(store, SETTINGS).delete(NAME, topic_id)


def alter_configs(store: Any, topic_id: uuid.UUID) -> None:
    change = Alteration("segment.ms", Operation.SET, "3")
    ConfigAdmin(store, SETTINGS, 0).alter(ConfigEntity.topic(NAME), [change])


def replace_configs(store: Any, topic_id: uuid.UUID) -> None:
    ConfigAdmin(store, SETTINGS, 0).replace(ConfigEntity.topic(NAME), {"segment.ms": "3"})


WRITES = [grow, delete_by_name, delete_by_id, alter_configs, replace_configs]


@pytest.mark.parametrize("again", [True, False], ids=["created again", "gone"])
@pytest.mark.parametrize("write", WRITES)
def test_no_write_that_began_with_one_topic_reaches_the_next_of_its_name(
    embedded: EmbeddedStore, clock: ManualClock, write: Callable[..., Any], again: bool
) -> None:
    register(embedded, 0)
    admin = TopicAdmin(embedded, SETTINGS)
    controller = ControllerStore(embedded, 0, clock)
    assert controller.try_elect() == 0

    def meanwhile() -> uuid.UUID | None:
        controller.remove_topic(NAME)
        return admin.create(NewTopic(NAME, 1, 1, configs=NEW)).topic_id if again else None

    for at_call in itertools.count():
        old = admin.create(NewTopic(NAME, 1, 1, configs=OLD)).topic_id
        store = Interrupted(embedded, at_call, meanwhile)
        outcome: object
        try:
            outcome = write(store, old)
        except KafkaError as refusal:
            outcome = refusal
        if store.new is not None:
            _check_next_topic(embedded, write, outcome, store.new)
        elif store.was_interrupted:
            gone = UnknownTopicId if write is delete_by_id else UnknownTopicOrPartition
            assert isinstance(outcome, gone), outcome
            assert embedded.children(znodes.DELETE_TOPICS) == []
            assert embedded.exists(ConfigEntity.topic(NAME).path) is None
        else:
            assert not isinstance(outcome, KafkaError), outcome
            break  # the write has no more calls than that
        controller.remove_topic(NAME)
    assert at_call >= 3


def _check_next_topic(
    store: EmbeddedStore, write: Callable[..., Any], outcome: object, new: uuid.UUID
) -> None:
    """Nothing of the old topic is in the new one, and the write is complete."""
    node = TopicNode.decode(store.get(znodes.topic_path(NAME))[0])
    assert node.topic_id == new
    configs = decode_config(store.get(ConfigEntity.topic(NAME).path)[0])
    is_going = store.exists(znodes.delete_topic_path(NAME)) is not None
    wanted: dict[Callable[..., Any], tuple[bool, int, bool, dict[str, str]]] = {
        grow: (outcome == new, 3, False, NEW),
        delete_by_name: (outcome == new, 1, True, NEW),
        delete_by_id: (isinstance(outcome, UnknownTopicId), 1, False, NEW),
        alter_configs: (outcome is None, 1, False, {**NEW, "segment.ms": "3"}),
        replace_configs: (outcome is None, 1, False, {"segment.ms": "3"}),
    }
    assert (True, len(node.partitions), is_going, configs) == wanted[write], outcome
