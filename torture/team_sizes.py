"""T5: a run can be resumed with a different number of processes and sees the same samples in the same order.

One process trains without interruption. Then chains of processes train: two stop and save, one resumes and stops, two
resume to the end; and vice versa. The processes report the rows of each step. Rows must be the same, in the
same order; losses must agree within a relative 1e-6 (float32, no dropout).
"""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from unittest.mock import patch

from cloze.corpus.batches import PretrainingBatch
from cloze.progress import Progress
from cloze.train.loop import ObjectiveOutput, _Training
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from torture.campaign import Outcome
from torture.training import command, make_corpus, result, start_command

Stage = tuple[int, Literal["ddp", "fsdp"]]  # number of processes, and their parallelism strategy
Rows = dict[int, tuple[str, ...]]
_CLOSE = 1e-6
_MOST_FAILURES = 10


@dataclass(frozen=True)
class SizeSettings:
    """The chains to try."""

    chains: tuple[tuple[Stage, ...], ...] = (
        ((2, "ddp"), (1, "ddp"), (2, "ddp")),
        ((2, "fsdp"), (1, "ddp"), (2, "fsdp")),
        ((1, "ddp"), (2, "fsdp"), (1, "ddp")),
        ((2, "ddp"), (2, "fsdp"), (1, "ddp")),
    )
    steps: int = 20


@dataclass(frozen=True)
class Member:
    """Hook: join a process group, report the rows of every step, and stop all processes after one of them."""

    rank: int
    size: int
    port: int
    stop: int | None

    def __call__(self, pipe: Connection) -> None:
        """Set what torchrun would set, and patch the batches to report their rows."""
        team = {"RANK": self.rank, "LOCAL_RANK": self.rank, "WORLD_SIZE": self.size, "MASTER_PORT": self.port}
        os.environ.update({name: str(value) for name, value in team.items()} | {"MASTER_ADDR": "127.0.0.1"})
        step_of, forward = _Training._step, PretrainingObjective.forward
        now = 0

        def step(training: _Training, number: int, seconds: float) -> None:
            nonlocal now
            now = number + 1
            step_of(training, number, seconds)
            if now == self.stop and training.group.is_main:
                os.kill(os.getpid(), signal.SIGTERM)

        def telling(
            objective: PretrainingObjective, batch: PretrainingBatch, totals: Mapping[str, int]
        ) -> ObjectiveOutput:
            if objective.training:
                lengths = batch.lengths.tolist()
                rows = [row[:length].tobytes() for row, length in zip(batch.ids, lengths, strict=True)]
                pipe.send((now, [sha256(row).hexdigest()[:16] for row in rows]))
            return forward(objective, batch, totals)

        patch.object(_Training, "_step", step).start()
        patch.object(PretrainingObjective, "forward", telling).start()


def run(settings: SizeSettings, progress: Progress) -> Outcome:
    """Train with one process, then with every chain."""
    figures: dict[str, str | int | float] = {"chains": 0, "other rows": 0, "largest difference": 0.0}
    failures: list[str] = []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        data = make_corpus(scratch / "corpus")
        try:
            alone = _train(data, scratch / "alone", ((1, "ddp"),), settings.steps)
            losses = [row["loss"] for row in result(scratch / "alone").losses if "loss" in row]
            for number, chain in enumerate(settings.chains):
                out = scratch / f"chain-{number}"
                rows = _train(data, out, chain, settings.steps)
                found = [row["loss"] for row in result(out).losses if "loss" in row]
                other = sum(rows.get(step) != alone[step] for step in alone)
                difference = max(abs(one - two) / max(1.0, one) for one, two in zip(losses, found, strict=True))
                figures["chains"] = number + 1
                figures["other rows"] = int(figures["other rows"]) + other
                figures["largest difference"] = max(float(figures["largest difference"]), difference)
                if other or difference > _CLOSE or len(alone) != settings.steps:
                    failures.append(f"{chain}: {other} steps with different rows, losses differ by {difference:.3g}")
                progress.advance("T5: changing teams", number + 1, len(settings.chains))
        except _TeamError as error:
            failures.append(str(error))
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


class _TeamError(Exception):
    """Raised when a process ends in an unexpected way."""


def _train(data: Path, out: Path, chain: Sequence[Stage], steps: int) -> Rows:
    """Train one run with several process groups in turn; return the rows of every step."""
    rows: Rows = {}
    for number, (size, way) in enumerate(chain, start=1):
        last = number == len(chain)
        stop = None if last else number * steps // len(chain)
        words = command(data, out, steps, "--dropout", "0", "--parallel", way, save_every=1000)
        port = _free_port()
        children = [
            start_command(words, out.with_name(f"said-{rank}"), Member(rank, size, port, stop if rank == 0 else None))
            for rank in range(size)
        ]
        codes = [child.end() for child in children]
        if codes != [0 if last else 128 + signal.SIGTERM] * size:
            raise _TeamError(f"{out.name}, {size} of {way}: exit codes {codes}: {children[0].last_line}")
        for step in {step for step, _ in children[0].messages}:
            rows_of_step = [row for child in children for each, part in child.messages if each == step for row in part]
            if rows.setdefault(step, tuple(rows_of_step)) != tuple(rows_of_step):
                raise _TeamError(f"{out.name}: step {step} was repeated with different rows")
    return rows


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
