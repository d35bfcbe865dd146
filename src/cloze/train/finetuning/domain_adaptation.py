"""``cloze adapt``: a model reads the field's text, then the task's own, and is fine-tuned (Gururangan et al. 2020).

Four starts are fine-tuned over the same seeds: the model as it is, after the field, after the task, after both. The
table says what each step brought, and the best model stays. Every step is a run of its own in the run's folder, so that
the same command goes on wherever it stopped.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloze.checkpoint import find_model, find_source
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.errors import CheckpointError, ConfigError
from cloze.files import replaced_file, replaced_folder
from cloze.progress import Progress, Silent
from cloze.tasks.kind import PlacedTexts
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.checks import check_task
from cloze.train.finetuning.leakage import (
    Rows,
    read_other_splits,
    read_own_test,
    refuse_overlap,
    write_without_overlap,
)
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import AdaptSettings, FinetuneSettings, SearchSettings
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.run import Run
from cloze.train.settings import PrecisionName

_LOOKING = "looking for dev and test rows in the text"
DIRECT, DOMAIN, TASK, BOTH = "direct", "domain", "task", "domain + task"


def adapt(
    source: Source,
    domain: Sequence[str | Path],
    model: str | Path,
    out: str | Path,
    *,
    test: str | Path | None = None,
    adaptation: AdaptSettings | None = None,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Adapt, fine-tune and compare; return the run's folder. ``test`` has more rows that must not have been read."""
    adaptation, progress = adaptation or AdaptSettings(), progress or Silent()
    settings = settings or FinetuneSettings()
    data, texts = read_task(source), [Path(text) for text in domain]
    others = _read_others(source, test, adaptation)
    check_task(data, model, settings)  # what fine-tuning would refuse after all that reading
    if adaptation.overlap == "refuse":
        progress.say(_LOOKING)
        refuse_overlap(texts, _scored(data, others))
    asked = {
        "command": "adapt",
        "model": str(Path(model)),
        "domain": [str(text) for text in texts],
        **source.recorded(),
    }
    asked["test"] = None if test is None else str(test)
    run = Run.open(Path(out), asked | asdict(adaptation) | asdict(settings), fresh=fresh)
    if run.finished:
        progress.say(f"{run.folder}: finished already; use --fresh to start over")
        return run.folder
    if adaptation.overlap == "drop":
        texts = [_without_overlap(texts, _scored(data, others), run.folder / "domain.txt", progress)]
    steps = _Steps(run.folder, adaptation, settings.precision, device, progress)
    task_text = _write_task_text(data, run.folder / "task.txt")
    if adaptation.overlap != "allow":
        # Training rows are learned from in any case; to read those that hold what is scored would be a head start.
        clean = run.folder / "task-clean.txt"
        task_text = _without_overlap([task_text], _scored(data, others), clean, progress)
    starts: dict[str, str | Path] = {DIRECT: model}
    starts[DOMAIN] = steps.read(texts, model, "domain", adaptation.domain_steps)
    starts[TASK] = steps.read([task_text], model, "task", adaptation.task_steps)
    starts[BOTH] = steps.read([task_text], starts[DOMAIN], "domain-task", adaptation.task_steps)
    how = SearchSettings(seeds=adaptation.seeds)
    rows: dict[str, dict[str, Any]] = {}
    for name, start in starts.items():
        progress.say(f"{name}:")
        place = run.folder / "tuned" / name.replace(" + ", "-")
        tuned = search(source, start, place, settings=settings, how=how, device=device, progress=progress)
        rows[name] = {"folder": str(tuned.relative_to(run.folder)), **Run(tuned).results()}
    _finish(run, rows, data.metrics[0])
    return run.folder


class _Steps:
    """Readings of text without labels, each prepared and pre-trained in a folder of its own."""

    def __init__(
        self, folder: Path, settings: AdaptSettings, precision: PrecisionName, device: str | None, progress: Progress
    ) -> None:
        self._folder, self._settings, self._precision = folder, settings, precision
        self._device, self._progress = device, progress

    def read(self, texts: Sequence[Path], model: str | Path, name: str, steps: int) -> Path:
        """Further pre-training of a model on some text."""
        self._progress.say(f"reading: {name}")
        found = find_model(find_source(model))
        if found is None:
            raise CheckpointError(
                f"{model}: not a model folder; give one that pretrain, finetune or convert has written"
            )
        prepared = PrepareSettings(held_out=self._settings.held_out)
        data = prepare(texts, found[0], self._folder / f"{name}-text", settings=prepared, progress=self._progress)
        settings = self._settings.pretraining(steps, self._precision)
        place = self._folder / name
        return pretrain(data, place, model=model, settings=settings, device=self._device, progress=self._progress)


def _read_others(source: Source, test: str | Path | None, adaptation: AdaptSettings) -> list[PlacedTexts]:
    """Rows that a model may be scored on later, besides the dev rows."""
    if test is None:
        return [] if adaptation.overlap == "allow" else read_other_splits(source)
    if adaptation.overlap == "allow":
        raise ConfigError(f"test is {test}, but with --overlap allow nothing is looked for; leave out one of them")
    return read_own_test(source, Path(test))


def _scored(data: TaskData, others: Sequence[PlacedTexts]) -> Iterator[PlacedTexts]:
    """All rows that a model may be scored on."""
    yield from zip(data.dev.places, data.dev.documents(), strict=True)
    yield from others


def _without_overlap(texts: Sequence[Path], scored: Rows, path: Path, progress: Progress) -> Path:
    """The text without documents in which rows occur that will be scored, as a file, which is there if it is whole."""
    if not path.is_file():
        progress.say(_LOOKING)
        dropped = write_without_overlap(texts, scored, path)
        progress.say(f"{path.name}: documents in which such rows occur, and which are left out: {dropped:,}")
    return path


def _write_task_text(data: TaskData, path: Path) -> Path:
    """The training rows' texts as a text file, a row a document."""
    documents = ["\n".join(" ".join(text.split()) for text in texts) for texts in data.train.documents()]
    with replaced_file(path) as temporary:
        temporary.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def _finish(run: Run, rows: dict[str, dict[str, Any]], metric: str) -> None:
    before = rows[DIRECT]["mean"]
    table = {
        name: {key: row[key] for key in ("mean", "deviation", "runs", "least", "most", "failed")}
        | {"brought": row["mean"] - before}
        for name, row in rows.items()
    }
    best = max(rows, key=lambda name: rows[name]["mean"])
    run.write_results({"metric": metric, "starts": table, "best": best})
    chosen = Run(run.folder / rows[best]["folder"]).model_folder
    with replaced_folder(run.model_folder) as temporary:
        shutil.copytree(chosen, temporary, dirs_exist_ok=True)
