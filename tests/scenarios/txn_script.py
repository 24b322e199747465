"""Plays a transactional id for a scenario: who is told what, and which markers are due, is printed.

Producers are called by id and epoch, such as 100/0; `v2` behind a request says that its client
raises the epoch with each transaction (KIP-890).
"""

from __future__ import annotations

from plog.coordinator.txn import EPOCH_PER_TRANSACTION
from plog.coordinator.txn_events import NO_PRODUCER, Producer, TxnAnswer, TxnValue
from plog.coordinator.txn_states import TxnState
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.coordinator.txn_play import TIMEOUT_MS, Play


class TxnScript:
    def __init__(self) -> None:
        self.play = Play()
        self._labels: dict[int, str] = {}
        self._told = 0

    def __call__(self, words: list[str]) -> list[str]:
        command, *rest = words
        due, later, forgotten = len(self.play.markers), self.play.later, self.play.forgotten
        reply = getattr(self, f"_{command}")(*rest)
        if command in ("restart", "txn") or words == ["mark"]:
            due = 0  # these begin the list anew
        answers = list(self.play.answers.items())[self._told :]
        self._told += len(answers)
        lines = [f"{self._labels[token]}: {_line(answer)}" for token, answer in answers]
        for markers in self.play.markers[due:]:
            outcome = "commit" if markers.commit else "abort"
            lines.append(f"markers: {outcome} {_name(markers.producer)}{_all(markers.partitions)}")
        lines += ["to be completed later"] * (self.play.later - later)
        lines += ["forgotten"] * (self.play.forgotten - forgotten)
        return lines + list(reply or ())

    def _txn(self, *given: str) -> None:
        """Begin anew: `store=later` to have the log be asked for, `producer=5/32766` for one that
        the log says has no transaction."""
        words = dict(one.split("=") for one in given)
        value = None
        if "producer" in words:
            producer = _producer(words["producer"])
            value = TxnValue(*producer, TIMEOUT_MS, TxnState.EMPTY, updated_ms=0)
        self._begin(Play(value, stores_at_once=words.get("store") != "later"))

    def _begin(self, play: Play) -> None:
        self.play, self._labels, self._told = play, {}, 0

    def _init(self, *was: str) -> None:
        """Send an InitProducerId; of who goes on (KIP-360) with who it is."""
        token = self.play.init(_producer(was[0]) if was else None)
        self._labels[token] = " ".join(["init", *was])

    def _add(self, producer: str, *given: str) -> None:
        """Send an AddPartitionsToTxn."""
        version = EPOCH_PER_TRANSACTION if "v2" in given else 0
        partitions = [_partition(one) for one in given if one != "v2"]
        token = self.play.add(_producer(producer), *partitions, version=version)
        self._labels[token] = f"add {producer}"

    def _commit(self, producer: str, *version: str) -> None:
        """Send an EndTxn."""
        token = self.play.commit(_producer(producer), raises="v2" in version)
        self._labels[token] = f"commit {producer}"

    def _abort(self, producer: str, *version: str) -> None:
        token = self.play.abort(_producer(producer), raises="v2" in version)
        self._labels[token] = f"abort {producer}"

    def _verify(self, producer: str, *partitions: str) -> list[str]:
        """Ask, as for a first write, whether partitions are in the open transaction."""
        found = self.play.txn.missing(_producer(producer), map(_partition, partitions))
        told = found.name if isinstance(found, ErrorCode) else f"missing{_all(found) or ' nothing'}"
        return [f"verify {producer}: {told}"]

    def _connection(self, number: str) -> None:
        """Have what is asked from now on come by this connection."""
        self.play.connection = int(number)

    def _give_up(self) -> None:
        """Have everybody who waits wait no longer."""
        for token in self.play.asked:
            if token not in self.play.answers:
                self.play.give_up(token)

    def _mark(self, *partitions: str) -> None:
        """Have the markers that are due be written, or those of some partitions."""
        self.play.mark(*map(_partition, partitions))

    def _store(self, *error: str) -> None:
        """Have the log take what it was asked for, or refuse it."""
        self.play.store(ErrorCode[error[0]] if error else ErrorCode.NONE)

    def _pass(self, duration_ms: str) -> None:
        self.play.wait(int(duration_ms))

    def _restart(self) -> None:
        """Have another coordinator read the log."""
        before = self.play
        play = Play(before.log[-1], stores_at_once=before.stores_at_once)
        play.now_ms = before.now_ms
        self._begin(play)
        play.do(play.txn.resume())

    def _show(self) -> list[str]:
        """Print what is described, and who waits for an answer."""
        value = self.play.txn.value
        line = "nothing"
        if value is not None:
            line = f"{value.state.label} {_name(value.producer)}{_all(self.play.txn.partitions)}"
        waiting = [one for one in self.play.asked if one not in self.play.answers]
        return [line, *(f"  {self._labels[token]} waits" for token in waiting)]


def _producer(text: str) -> Producer:
    return Producer(*map(int, text.split("/")))


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _name(producer: Producer) -> str:
    return f"{producer.id}/{producer.epoch}"


def _all(partitions: frozenset[TopicPartition]) -> str:
    return "".join(f" {one}" for one in sorted(partitions))


def _line(answer: TxnAnswer) -> str:
    if answer.error is not ErrorCode.NONE or answer.producer == NO_PRODUCER:
        return answer.error.name
    return f"NONE {_name(answer.producer)}"
