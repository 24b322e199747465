"""`bin/chaos`: random faults on three replicated brokers, for a given time.

Each round has brokers, topics and histories of its own, and is judged at its end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from plog.types import counted
from tests.cluster.zookeepers import Ensemble

from . import network, strikes
from .judging import check_replicas, judge
from .network import ZOOKEEPER, Network
from .plan import Step, round_of, words_of
from .power import BrokersApartOnDisks, stacks_kept
from .scene import COMPLETE_WITHIN_S, Role, Scene, settings_of

ROOT = Path(__file__).resolve().parents[3]
FACTOR = 3
PAUSE_SESSIONS = 0.3
REPLACED_AT_A_STEP = 4
"""So many clients may give up at one step: the group's and the transactions'."""


class Anomaly(Exception):
    """What must not be."""


class Run:
    """A run of some rounds, and what it has counted."""

    def __init__(self, place: Path, minutes: float) -> None:
        self._place = place
        self._end = time.monotonic() + 60 * minutes
        self.acknowledged = 0
        self.steps: Counter[str] = Counter()
        self.rounds = 0
        self.begun: list[str] = []
        """The steps of this round."""

    @property
    def left_s(self) -> float:
        return max(self._end - time.monotonic(), 0.0)

    def tell(self, text: str) -> None:
        """Print a line with the time that is left."""
        minutes, seconds = divmod(round(self.left_s), 60)
        click.echo(f"[{minutes:3d}:{seconds:02d} left] {text}")

    def play(self, seed: int) -> None:
        """Do rounds until the time is over.

        Raises:
            Anomaly: the message names the round, its steps and the fault.
        """
        while self.rounds == 0 or self.left_s > 0:
            self.rounds += 1
            directory = self._place / f"round{self.rounds}"
            directory.mkdir(parents=True)
            of_round = seed + self.rounds - 1
            self.begun = []
            self.tell(f"round {self.rounds}, seed {of_round}: three brokers start")
            try:
                self._round(directory, of_round)
            except Exception as fault:
                steps = "\n  ".join(self.begun)
                raise Anomaly(
                    f"ANOMALY in round {self.rounds}, seed {of_round}. Its steps, to the last:\n"
                    f"  {steps}\n{traceback.format_exc()}"
                ) from fault
            shutil.rmtree(directory)

    def _round(self, directory: Path, seed: int) -> None:
        with network.network() as made, _zookeeper(directory, made) as servers:
            place = directory / "brokers"
            place.mkdir()
            brokers = BrokersApartOnDisks(place, servers.bootstrap, made, **settings_of(FACTOR))
            with brokers, stacks_kept(brokers):
                scene = Scene(directory, servers, brokers, Role.LEADER, seed, factor=FACTOR)
                try:
                    for step in round_of(seed):
                        if self.left_s == 0:
                            break
                        self._step(scene, step)
                    self._recover(scene)
                    scene.end()
                finally:
                    scene.close()
                figures = judge(scene)
            check_replicas(scene)
        self.acknowledged += acknowledged(directory)
        self.tell(f"round {self.rounds} is well: {figures}, {len(scene.workers.replaced)} clients")

    def _step(self, scene: Scene, step: Step) -> None:
        scene.workers.most_replaced += REPLACED_AT_A_STEP
        aimed: list[Scene] = []
        chance = random.Random(step.seed)
        for _, role in step.strikes:
            spared = [one.victim for one in aimed]
            aimed.append(scene.aimed(role, chance.randrange(2**32), spared))
        self.begun.append(step.in_words([one.victim for one in aimed]))
        self.tell(self.begun[-1])
        (strike, _), *others = step.strikes
        with ThreadPoolExecutor() as pool:
            at_once = [
                pool.submit(other, one) for (other, _), one in zip(others, aimed[1:], strict=True)
            ]
            strike(aimed[0])
            for one in at_once:
                one.result()
        self.steps.update(words_of(strike) for strike, _ in step.strikes)
        scene.workers.replace_dead()
        if step.waits:
            self._recover(scene)
        else:
            strikes.last(aimed[0], PAUSE_SESSIONS)

    def _recover(self, scene: Scene) -> None:
        """Wait until each transaction is over, and each client has had its effect."""
        began = time.monotonic()
        scene.until_complete()
        left_s = COMPLETE_WITHIN_S - (time.monotonic() - began)
        scene.workers.until_progress(int(1e9 * began), left_s)
        took_s = time.monotonic() - began
        count = acknowledged(scene.workers.directory.parent)
        self.tell(f"  recovered in {took_s:.1f} s; {count} records acknowledged in this round")


def acknowledged(directory: Path) -> int:
    """Return how many records of a round are acknowledged."""
    files = (directory / "histories").glob("*.jsonl")
    return sum(path.read_bytes().count(b'"kind":"ack"') for path in files)


@contextmanager
def _zookeeper(directory: Path, made: Network) -> Iterator[Ensemble]:
    launcher = network.launcher(made.zookeeper)
    servers = Ensemble(directory / "zookeeper", 1, host=ZOOKEEPER, launcher=launcher)
    try:
        yield servers
    finally:
        servers.close()


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How long. The last round is judged after that.",
)
@click.option("--seed", type=int, help="Repeats the strikes of a run. By default, a new one.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to keep what shows an anomaly. It must be new or empty; a new one in build/chaos.",
)
def main(minutes: float, seed: int | None, directory: Path | None) -> None:
    """Break three replicated plog brokers at random, and check that nothing is lost.

    Three brokers and a ZooKeeper run on this machine, each in a network namespace of its own.
    Topics have three replicas. Clients of two libraries write with acks=all, copy in transactions,
    and read in groups, while brokers are killed, suspended, cut off, restarted in turn, and lose
    their power (what they had not synced is thrown away), and partitions are moved. Victims are
    chosen by what a broker does at that time: the leader or a follower of a partition, the
    controller, the coordinator of a group or of transactions.

    After each round of some minutes, everything is read again. No acknowledged record may be
    missing, there twice, out of order or part of half a transaction; all clients must go on within
    30 seconds of a fault, and no call may take longer than its own timeout.

    The seed decides which faults come in which order. It does not decide when a broker does what,
    so an anomaly may need several runs to show itself again.

    \b
    Exit status:
      0  nothing was wrong
      1  an anomaly; the seed, the anomaly and the directory with histories and logs are printed
      2  wrong usage, or this machine cannot do it (network namespaces need root)

    \b
    Examples:
      bin/chaos --minutes 5
      bin/chaos --minutes 180 --seed 7
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        click.echo(
            "bin/chaos: needs root, and the commands `ip` and `nsenter`: it cuts networks", err=True
        )
        sys.exit(2)
    seed = random.randrange(2**32) if seed is None else seed
    place = directory or ROOT / "build" / "chaos" / f"{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise click.UsageError(f"{place} is not empty")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.echo(f"seed {seed}, {minutes:g} minutes, in {place}")
    run = Run(place, minutes)
    try:
        run.play(seed)
    except Anomaly as anomaly:
        click.echo(f"\n{anomaly}", err=True)
        click.echo(f"Histories, logs and data are in {place}.", err=True)
        again = f"`bin/chaos --seed {seed + run.rounds - 1}` begins with the steps of that round."
        click.echo(again, err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted. Everything has ended; what there was is in {place}.", err=True)
        sys.exit(130)
    finally:
        report(run)
    with suppress(OSError):
        place.rmdir()


def report(run: Run) -> None:
    """Print what a run did."""
    click.echo(f"{counted(run.rounds, 'round')}, {counted(sum(run.steps.values()), 'strike')}:")
    for name, count in sorted(run.steps.items()):
        click.echo(f"  {count:4d} {name}")
    click.echo(f"{run.acknowledged} records acknowledged in the rounds that ended well")


if __name__ == "__main__":
    main(prog_name="bin/chaos")
