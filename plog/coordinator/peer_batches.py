"""Questions to other brokers, those that come while one is under way sent together as the next.

Owns the queue of each broker. Each question is sent once; the caller decides whether to ask
again. For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from plog.errors import KafkaError, PlogError, RequestTimedOut

log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

MAX_BATCH = 1000
"""Questions in one request."""


class PeerBatches(Generic[Q, A]):
    """Questions of one kind.

    Args:
        send: asks a broker several questions in one request, and returns what became of each.
    """

    def __init__(self, send: Callable[[int, Sequence[Q]], Awaitable[Sequence[A | KafkaError]]]):
        self._send = send
        self._waiting: dict[int, list[tuple[Q, asyncio.Future[A]]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def ask(self, broker_id: int, question: Q, *, within_s: float | None = None) -> A:
        """Return a broker's answer.

        Args:
            within_s: how long it may take; None: as long as `send` does.

        Raises:
            KafkaError: the broker refuses the question, or does not answer: then it may have
                done it.
        """
        answered: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(broker_id, []).append((question, answered))
        if broker_id not in self._tasks:
            self._tasks[broker_id] = asyncio.create_task(self._send_all(broker_id))
        try:
            await asyncio.wait([answered], timeout=within_s)
            if not answered.done():
                raise RequestTimedOut(f"broker {broker_id} does not answer within {within_s:g} s")
            return answered.result()
        finally:
            answered.cancel()

    async def _send_all(self, broker_id: int) -> None:
        try:
            while waiting := self._waiting.pop(broker_id, []):
                wanted = [one for one in waiting if not one[1].done()]  # callers give up
                batch, rest = wanted[:MAX_BATCH], wanted[MAX_BATCH:]
                if rest:
                    self._waiting[broker_id] = rest
                if batch:
                    await self._send_batch(broker_id, batch)
        finally:
            del self._tasks[broker_id]

    async def _send_batch(
        self, broker_id: int, batch: Sequence[tuple[Q, asyncio.Future[A]]]
    ) -> None:
        answers: Sequence[A | KafkaError]
        try:
            answers = await self._send(broker_id, [question for question, _ in batch])
        except KafkaError as failure:
            answers = [failure] * len(batch)
        except PlogError as silent:
            answers = [RequestTimedOut(f"broker {broker_id}: {silent}")] * len(batch)
        except (LookupError, ValueError) as fault:
            text = f"broker {broker_id}: the response does not fit the request: {fault!r}"
            answers = [RequestTimedOut(text)] * len(batch)
        except Exception as bug:  # each caller waits for an answer
            log.exception("a request to broker %d failed with an internal error", broker_id)
            answers = [RequestTimedOut(f"broker {broker_id}: {bug!r}")] * len(batch)
        if len(answers) != len(batch):
            text = f"broker {broker_id}: {len(answers)} answers to {len(batch)} questions"
            answers = [RequestTimedOut(text)] * len(batch)
        for (_, answered), answer in zip(batch, answers, strict=True):
            if answered.cancelled():
                continue
            if isinstance(answer, KafkaError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)
