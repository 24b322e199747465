"""How this broker asks the controller, here or elsewhere, to write in-sync sets. One attempt each.

Owns the way to the controller, nothing else: `InSyncKeeper` asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from plog.cluster.control_fence import ControlFence
from plog.cluster.controller import Controller
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peers import Peers
from plog.cluster.replication.alter_partition import Batch, Found
from plog.cluster.replication.alter_partition_messages import (
    found_in,
    found_of,
    proposed_of,
    request_of,
)
from plog.errors import ErrorCode, NotController, code_name, error_for
from plog.protocol.messages.replication import AlterPartitionResponse
from plog.types import TopicPartition

A = TypeVar("A")
B = TypeVar("B")


class IsrQuestion:
    """Asks for the sets of a batch. Safe from any thread.

    Args:
        broker_id: this broker.
        fence: has the epoch of its registration.
        peers: used for nothing else that may wait for long.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        fence: ControlFence,
        controller: Controller,
        metadata: MetadataCache,
        peers: Peers,
    ) -> None:
        self._broker_id = broker_id
        self._fence = fence
        self._controller = controller
        self._metadata = metadata
        self._peers = peers

    def __call__(self, batch: Batch) -> Future[Mapping[TopicPartition, Found]]:
        """Ask. The future gets a PlogError if there is no answer, or not by the controller."""
        broker_epoch = self._fence.broker_epoch
        if self._controller.is_active:
            return _mapped(
                self._controller.propose_isrs(self._broker_id, broker_epoch, proposed_of(batch)),
                found_of,
            )
        snapshot = self._metadata.snapshot
        controller_id = snapshot.live_controller_id
        if controller_id in (-1, self._broker_id):
            nowhere: Future[Mapping[TopicPartition, Found]] = Future()
            nowhere.set_exception(NotController("no other controller is known"))
            return nowhere
        names = {at.topic for at in batch}
        ids = {one: snapshot.topics[one].topic_id for one in names if one in snapshot.topics}
        request = request_of(batch, ids, broker_id=self._broker_id, broker_epoch=broker_epoch)

        def found(response: AlterPartitionResponse) -> Mapping[TopicPartition, Found]:
            code = response.error_code
            if code != ErrorCode.NONE:
                raise error_for(code, f"controller {controller_id} answered {code_name(code)}")
            return found_in(response, ids)

        return _mapped(self._peers.ask(controller_id, request, AlterPartitionResponse), found)


def _mapped(asked: Future[A], convert: Callable[[A], B]) -> Future[B]:
    """Return a future of what `convert` makes of another's result."""
    made: Future[B] = Future()

    def done(of: Future[A]) -> None:
        try:
            made.set_result(convert(of.result()))
        except Exception as error:  # noqa: BLE001 - of any kind: it is the asker's
            made.set_exception(error)

    asked.add_done_callback(done)
    return made
