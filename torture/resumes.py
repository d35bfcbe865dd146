"""T4: a run resumed from any of its steps is bit-identical to the uninterrupted run.

One training run keeps a copy of every checkpoint. From each of them a new process resumes to the end. Weights and the
losses of all steps must be equal: across epoch boundaries, with gradient accumulation, with a fixed set of masks, and
across the switch from short to long sequences. Batches are created in the training process, so there are no loader
processes whose number could matter.
"""

import shutil
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cloze.checkpoint import StateStore, TrainingState
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.progress import Progress
from cloze.text import Tokenizer
from cloze.train.pretraining.phases import open_batches
from cloze.train.settings import PretrainSettings
from torture.campaign import Outcome
from torture.training import command, differences, make_corpus, result, run_command

_MOST_FAILURES = 10
_WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "in parts": ("--accumulate", "2"),
    "frozen masks": ("--static", "2", "--masking", "word"),
    "long at the end": ("--long-length", "40", "--long-share", "0.3", "--objective", "sop"),
}


@dataclass(frozen=True)
class ResumeSettings:
    """The last step to resume from, and the kinds of training."""

    last: int = 30
    documents: int = 20  # an epoch of this number of documents has sixteen steps
    ways: tuple[str, ...] = tuple(_WAYS)


@dataclass(frozen=True)
class KeepCopies:
    """Hook: copy every checkpoint that is committed."""

    kept: Path

    def __call__(self, pipe: Connection) -> None:
        """Patch the save function to copy each checkpoint."""
        save = StateStore.save

        def copying(store: StateStore, state: TrainingState) -> None:
            save(store, state)
            shutil.copytree(store.folder, self.kept / str(state.step))
            pipe.send(state.step)

        patch.object(StateStore, "save", copying).start()


def run(settings: ResumeSettings, progress: Progress) -> Outcome:
    """Train once, keep all checkpoints, and resume from each."""
    failures: list[str] = []
    resumed = 0
    with TemporaryDirectory() as name:
        scratch = Path(name)
        data = make_corpus(scratch / "corpus", settings.documents)
        steps = settings.last + 4
        total = settings.last * len(settings.ways)
        for way in settings.ways:
            folder = scratch / way.replace(" ", "-")
            words = command(data, folder / "whole", steps, *_WAYS[way])
            code, child = run_command(words, scratch / "said", KeepCopies(folder / "kept"))
            if code != 0:
                failures.append(f"{way}: exit code {code}: {child.last_line}")
                continue
            for step in range(1, settings.last + 1):
                # The save interval may change on resumption, and saving rarely is faster.
                words = command(data, folder / "again", steps, *_WAYS[way], save_every=100)
                failures += _resume(folder, step, words)
                resumed += 1
                progress.advance("T4: resuming", resumed, total)
        epochs = _epochs(data, steps)
    if epochs < 2:
        failures.append("the run was only one epoch; it must cross an epoch boundary")
    figures: dict[str, str | int | float] = {
        "resumed": resumed,
        "ways": len(settings.ways),
        "epochs": epochs,
        "different": len(failures),
        "loader processes": "none to vary",
    }
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


def _resume(folder: Path, step: int, words: list[str]) -> list[str]:
    whole, again = folder / "whole", folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    again.mkdir()
    # Start from the metrics of the whole run: the resumed run must remove those after its step.
    for name in ("run.json", "metrics.jsonl"):
        shutil.copyfile(whole / name, again / name)
    shutil.copytree(folder / "kept" / str(step), again / "checkpoints")
    code, child = run_command(words, folder / "said")
    place = f"{folder.name}, from step {step}"
    if code != 0 or f"resuming at step {step}\n" not in child.output:
        return [f"{place}: exit code {code}: {child.last_line}"]
    return differences(result(again), result(whole), place)


def _epochs(data: Path, steps: int) -> int:
    settings = PretrainSettings(batch_size=4, max_length=24)
    (phase,) = settings.length_phases()
    mixed = open_batches(Corpus.open(data), Tokenizer.from_folder(data), settings, WordTables(), phase)
    return mixed.batches["nsp"].epoch_at(steps - 1) + 1
