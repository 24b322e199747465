"""InitProducerId without a transactional id: ids for idempotent producers (KIP-98)."""

from __future__ import annotations

from plog.errors import CoordinatorNotAvailable, ErrorCode, InvalidRequest, KafkaError
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from plog.types import NO_PRODUCER_ID

FIRST_EPOCH = 0
NO_PRODUCER_EPOCH = -1


@handles(InitProducerIdRequest, versions="0-5")
async def init_producer_id(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give an id that nobody has had."""
    try:
        _check(request)
        # Once in a thousand times an id costs a write to the coordination store.
        producer_id = await ctx.in_thread(ctx.services.producer_ids.next)
    except KafkaError as refusal:
        return InitProducerIdResponse(
            error_code=refusal.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
        )
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=FIRST_EPOCH
    )


def _check(request: InitProducerIdRequest) -> None:
    """Refuse what is not a producer without transactions.

    One that names its id wants to go on after an error it could not resolve (KIP-360). It gets
    a new id all the same, as from Kafka: nobody tracks epochs without a transactional id.
    """
    if request.transactional_id == "":
        raise InvalidRequest("an empty transactional id")
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("a producer id without its epoch, or the other way round")
    if request.transactional_id is not None:
        raise CoordinatorNotAvailable("this broker has no transaction coordinator")
