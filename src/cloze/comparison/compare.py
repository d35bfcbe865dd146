"""``cloze compare``: train architectures and variants of BERT with one budget, and evaluate them with one set of tests.

The folder of a comparison (``results.py`` has the names):

run.json            the settings and the digests of all inputs; the same call resumes, another one is refused
text/               the documents: train.txt, and test.txt for the blanks
vocabulary/ corpus/ test/    the common vocabulary, and both texts in its tokens
models/ROW/         the learning-rate trials, and a pre-training run per seed
scores/ROW/         the score of each seed on each yardstick, on every bootstrap resample
compare.json        all results; the same after interruptions if the budget is in steps or operations
compare.html        the page

Every part is written atomically and skipped when the comparison is run again. After each pre-training, compare.json and
the page are written with the results so far.
"""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from cloze.checkpoint import load_folder
from cloze.checkpoint.folder import file_digest
from cloze.comparison.report import write_page
from cloze.comparison.results import COST, DIVERGED, MODES, NAME, PHENOMENA, RATE, REFUSED, ComparisonFolder
from cloze.comparison.settings import ComparedRow, CompareSettings
from cloze.comparison.yardsticks import (
    Blank,
    GroupedRows,
    TaskYardstick,
    choose_blanks,
    count_tokens,
    minimal_pairs,
    read_yardstick,
    resamples_of,
    score_blanks,
    score_frequencies,
    score_pairs,
)
from cloze.corpus.documents import read_any_documents
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.record_files import documents_as_files
from cloze.corpus.settings import PrepareSettings, VocabularySettings
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import CheckpointError, ConfigError, DataError, RequestError, format_option
from cloze.files import check_is_file, read_json, replace_json, replaced_file
from cloze.model import Backbone
from cloze.model.heads import POOLED_HEADS
from cloze.predict import Model
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import fit_baselines
from cloze.tasks.comparisons import Resamples
from cloze.tasks.examples import fingerprint
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.optimization import DivergedError
from cloze.train.pretraining.objectives import OBJECTIVES
from cloze.train.pretraining.phases import LengthSchedule, flops_per_token, open_tables
from cloze.train.pretraining.pretrain import pretrain, start_model
from cloze.train.run import Run
from cloze.train.settings import PretrainSettings

_SAMPLED_STEPS = 20  # steps whose targets are counted, to estimate the number of targets of a run


def compare(
    texts: Any,
    out: str | Path,
    *,
    settings: CompareSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Compare architectures and variants of BERT at equal budget; calling this again resumes an unfinished comparison.

    Args:
        texts: Text files, or documents in memory, as for ``train_vocabulary``.
        out: The folder of the comparison.
        settings: Rows, budget, sizes and yardsticks.
        device: Where to compute; by default an accelerator if there is one.
        fresh: Delete an existing comparison and start over.
        progress: Receives messages and progress.

    Returns:
        The folder, with the results in ``compare.json`` and a page in ``compare.html``.

    Raises:
        ConfigError: If settings contradict each other, or differ from those of the comparison to resume.
        DataError: If a text or a task cannot be read, or there are too few documents.

    Example:
        >>> settings = cloze.CompareSettings(preset="tiny", steps=500, backbones="bert,bert+nsp", tasks="order")
        >>> cloze.compare("books.txt", "runs/compared", settings=settings)
        PosixPath('runs/compared')
    """
    settings, progress, out = settings or CompareSettings(), progress or Silent(), Path(out)
    tasks = [read_yardstick(task, settings) for task in settings.compared_tasks()]  # before any long work
    with documents_as_files(texts, out, "text") as paths:
        for path in paths:
            check_is_file(path)
        recorded = {
            "command": "compare",
            **asdict(settings),
            "texts": [file_digest(path) for path in paths],
            "rows_of_tasks": {task.name: fingerprint(task.data.train, task.data.dev) for task in tasks},
        }
        with Run.open(out, recorded, fresh=fresh) as run:
            for note in run.notes:
                progress.say(note)
            folder = ComparisonFolder(run.folder, settings, {task.name: task.data.metrics[0] for task in tasks})
            if folder.finished:
                progress.say(f"{out}: already finished; use {format_option('fresh', True)} to start over")
            else:
                _Comparison(folder, tasks, device, progress).run(paths)
            write_page(run.folder)
    return out


class _Comparison:
    """The steps of a comparison; each is skipped if its result is already in the folder."""

    def __init__(
        self, folder: ComparisonFolder, tasks: Sequence[TaskYardstick], device: str | None, progress: Progress
    ) -> None:
        self._folder, self._tasks, self._device, self._progress = folder, tasks, device, progress
        self._settings = folder.settings

    def run(self, paths: Sequence[Path]) -> None:
        """Do everything that is not done yet."""
        self._prepare(paths)
        self._score_references()
        rows = self._settings.rows()
        for row in rows:
            self._steps(row)  # refuses a budget that is too small for a row before the first one is trained
        for number, row in enumerate(rows, start=1):
            self._progress.say(f"{row.name}, row {number} of {len(rows)}")
            rate = self._choose_rate(row)
            for seed in self._folder.seeds(row):
                self._train_and_score(row, rate, seed)
                self._write(rows, finished=False)
                write_page(self._folder.path)
        self._write(rows, finished=True)

    def _write(self, rows: Sequence[ComparedRow], *, finished: bool) -> None:
        train = read_manifest(self._folder.corpus)["splits"]["train"]
        facts = {
            "text": {"documents": train["documents"], "tokens": train["tokens"]},
            "test": {"documents": Corpus.open(self._folder.test).document_count, "blanks": len(self._blanks)},
        }
        self._folder.write(rows, facts, finished=finished)

    # -- text ------------------------------------------------------------------------------------------------------

    def _prepare(self, paths: Sequence[Path]) -> None:
        """Set the test documents aside, learn the vocabulary, and tokenize both texts."""
        train, test = self._split(paths)
        settings, progress = self._settings, self._progress
        if not self._vocabulary.is_dir():
            wanted = VocabularySettings(size=settings.vocabulary, cased=settings.cased)
            train_vocabulary([train], self._vocabulary, settings=wanted, progress=progress)
        prepare([train], self._vocabulary, self._folder.corpus, settings=settings.preparation(), progress=progress)
        whole = PrepareSettings(held_out=0)
        prepare([test], self._vocabulary, self._folder.test, settings=whole, progress=progress)

    @property
    def _vocabulary(self) -> Path:
        return self._folder.path / "vocabulary"

    def _split(self, paths: Sequence[Path]) -> tuple[Path, Path]:
        """Draw half of the held-out documents for the blanks; return the files of the others and of these."""
        train, test = (self._folder.path / "text" / f"{name}.txt" for name in ("train", "test"))
        if train.is_file():  # written last
            return train, test
        train.parent.mkdir(exist_ok=True)
        draw, counts = random.Random(self._settings.seed), {True: 0, False: 0}
        with (
            replaced_file(train) as kept,
            kept.open("w", encoding="utf-8", errors="replace") as train_file,
            replaced_file(test) as aside,
            aside.open("w", encoding="utf-8", errors="replace") as test_file,
        ):
            for document in read_any_documents(paths, "text"):
                is_test = draw.random() < self._settings.held_out / 2
                counts[is_test] += 1
                (test_file if is_test else train_file).write("\n".join(document) + "\n\n")
            if min(counts.values()) == 0:
                raise DataError(
                    f"{sum(counts.values())} documents, of which {counts[True]} were drawn for the test; give more "
                    f"documents (a blank line separates two), or hold out more with {format_option('held_out')}"
                )
        return train, test

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self._vocabulary).with_max_length(self._settings.max_length)

    @cached_property
    def _blanks(self) -> list[Blank]:
        corpus, settings = Corpus.open(self._folder.test), self._settings
        return choose_blanks(corpus, self._tokenizer, settings.max_length, settings.blanks, settings.seed)

    # -- pre-training ----------------------------------------------------------------------------------------------

    def _steps(self, row: ComparedRow) -> int | None:
        """Return the number of steps that a budget of operations allows; None for the other budgets."""
        settings = self._settings
        if settings.flops is None:
            return None
        if row.backbone not in OBJECTIVES:
            raise ConfigError(
                f"flops does not apply to {row.name}, whose operations are not counted; use steps or hours"
            )
        training = settings.pretraining(row, settings.rates()[0], settings.seed)
        model, _ = start_model(self._tokenizer, training, None, Silent())
        cost = flops_per_token(model, training) * self._sample(training)[0]
        steps, least = int(settings.flops / cost), settings.least_steps
        if steps < least:
            raise ConfigError(
                f"flops is {settings.flops:g}, enough for {steps} steps of {row.name}, but {settings.trials} "
                f"learning-rate trials in a tenth of the budget need {least}; use at least {least * cost:.2g}"
            )
        return steps

    def _choose_rate(self, row: ComparedRow) -> float:
        """Try the learning rates; return the one with the lowest loss on the development documents.

        The losses of one row are comparable, because its trials have the same objective.
        """
        settings, place = self._settings, self._folder.model(row)
        if not (place / RATE).is_file():
            tried = settings.rates() if settings.trials > 1 and row.searched else ()
            trials = [self._try(row, rate) for rate in tried]
            known = [trial for trial in trials if trial["loss"] is not None]
            usual = row.settings.get("learning_rate", settings.rates()[0])
            best = min(known, key=lambda trial: trial["loss"])["learning_rate"] if known else usual
            place.mkdir(parents=True, exist_ok=True)
            replace_json(place / RATE, {"learning_rate": best, "trials": trials})
            shutil.rmtree(place / "trials", ignore_errors=True)
        return float(read_json(place / RATE)["learning_rate"])

    def _try(self, row: ComparedRow, rate: float) -> dict[str, Any]:
        """Return the development loss and cost of a trial; the loss is None if it diverged."""
        settings = self._settings
        whole = settings.pretraining(row, rate, settings.seed, self._steps(row))
        self._progress.say(f"{row.name}: trying the learning rate {rate:g}")
        try:
            run = self._pretrain(self._folder.model(row) / "trials" / f"{rate:g}", settings.trial(whole))
        except DivergedError:
            return {"learning_rate": rate, "loss": None, "steps": 0, "tokens": 0, "seconds": 0.0}
        results = Run(run).results()
        loss = results.get(f"held_out_{OBJECTIVES[whole.backbone].main_loss}")
        if loss is None:
            raise DataError(
                "too little text is held out to choose a learning rate; hold out more with "
                f"{format_option('held_out')}, or set {format_option('trials', 1)}"
            )
        facts = {"loss": loss, "steps": int(results["steps"]), "tokens": int(results["tokens_seen"])}
        return {"learning_rate": rate, **facts, "seconds": 3600 * results["hours"]}

    def _pretrain(self, folder: Path, settings: PretrainSettings) -> Path:
        return pretrain(self._folder.corpus, folder, settings=settings, device=self._device, progress=self._progress)

    def _train_and_score(self, row: ComparedRow, rate: float, seed: int) -> None:
        """Pre-train with one seed, and score the model on every yardstick."""
        place, scores = self._folder.model(row, seed), self._folder.scores(row, seed)
        if (place / DIVERGED).is_file():
            return
        settings = self._settings.pretraining(row, rate, seed, self._steps(row))
        try:
            run = self._pretrain(place, settings)
        except DivergedError as error:
            self._progress.say(f"{row.name}, seed {seed}: {error}")
            replace_json(place / DIVERGED, {"reason": str(error)})
            return
        if not (place / COST).is_file():
            replace_json(place / COST, self._cost(run, settings))
        self._attempt(scores / "blanks", self._score_blanks, run, scores)
        self._attempt(scores / "pairs", self._score_pairs, run, scores / "pairs")
        for task in self._tasks:
            for mode in MODES:
                cell = scores / f"{task.name} {mode}"
                self._attempt(cell, self._finetune, task, mode, run, cell, f"{row.folder}-{seed}", seed)

    def _attempt(self, place: Path, score: Callable[..., None], *arguments: Any) -> None:
        """Score a model; if that is not possible, record the reason and continue with the other yardsticks.

        For example, ELECTRA does not fill blanks, and a training may diverge. Resuming tries it again.
        """
        path = place / REFUSED
        try:
            score(*arguments)
            path.unlink(missing_ok=True)
        except (ConfigError, CheckpointError, RequestError, DivergedError) as error:
            self._progress.say(f"not scored: {error}")
            _made(place)
            replace_json(path, {"reason": str(error)})

    def _cost(self, run: Path, settings: PretrainSettings) -> dict[str, Any]:
        """Return the cost of a pre-training, and the size of the model."""
        results, model = Run(run).results(), load_folder(run).model
        tokens, counted = int(results["tokens_seen"]), settings.backbone in OBJECTIVES
        return {
            "steps": int(results["steps"]) if counted else None,
            "tokens": tokens,
            "targets": round(tokens * self._sample(settings)[1]) if counted else None,
            "flops": tokens * flops_per_token(model, settings) if counted else None,
            "parameters": model.parameter_count(),
            "non_embedding_parameters": non_embedding_parameters(model),
        }

    def _sample(self, settings: PretrainSettings) -> tuple[float, float]:
        """Return the tokens per step and the targets per token, from the first steps."""
        tables = open_tables(self._folder.corpus, self._tokenizer, settings)
        source = LengthSchedule.open(self._folder.corpus, self._tokenizer, settings, tables)
        batches = [source.at(step) for step in range(_SAMPLED_STEPS)]
        tokens = sum(batch.token_count for batch in batches)
        return tokens / len(batches), sum(batch.counts["masked_tokens"] for batch in batches) / tokens

    # -- yardsticks ------------------------------------------------------------------------------------------------

    def _score_blanks(self, run: Path, scores: Path) -> None:
        """Fill the blanks with a pre-trained model."""
        if not _is_scored(scores / "likelihood"):
            model = Model(load_folder(run), device=self._device)
            self._write_blanks(score_blanks(model, self._blanks), scores)

    def _score_pairs(self, run: Path, scores: Path) -> None:
        """Compare the sentences of the minimal pairs with a pre-trained model."""
        if not _is_scored(scores):
            model, pairs = Model(load_folder(run), device=self._device), minimal_pairs(self._settings.pairs)
            rows, phenomena = score_pairs(model, pairs, self._progress)
            replace_json(_made(scores) / PHENOMENA, phenomena)
            resamples_of(rows, "accuracy", pairs).write(scores)

    def _write_blanks(self, rows: GroupedRows, scores: Path) -> None:
        for metric, name in (("accuracy", "blanks"), ("likelihood", "likelihood")):
            resamples_of(rows, metric, self._blanks).write(_made(scores / name))

    def _score_references(self) -> None:
        """Score predictions without a neural network: word frequencies, and the simple baseline of each task."""
        reference = self._folder.reference
        if not _is_scored(reference / "likelihood"):
            counts = count_tokens(Corpus.open(self._folder.corpus), self._tokenizer.size)
            self._write_blanks(score_frequencies(counts, self._tokenizer, self._blanks), reference)
        for task in self._tasks:
            best = None if _is_scored(reference / task.name) else next(iter(fit_baselines(task.data)), None)
            if best is not None:
                place = _made(reference / task.name)
                replace_json(place / NAME, {"name": best.name})
                Resamples.of(best.rows, task.data.metrics[0], fingerprint(task.data.dev)).write(place)

    def _finetune(self, task: TaskYardstick, mode: str, model: Path, scores: Path, name: str, seed: int) -> None:
        """Train a head, or the whole model, on a task; only the scores are kept."""
        if _is_scored(scores):
            return
        kind = task.data.kind
        settings = FinetuneSettings(
            epochs=self._settings.epochs,
            max_length=self._settings.max_length,
            # The same head for all: a linear layer on the mean of the states, or on each state.
            pooling="mean" if mode == "full" and kind.head in POOLED_HEADS else None,
            few=False if "few" in kind.settings else None,
            precision=self._settings.precision if mode == "full" else "auto",
            baseline=False,
            seed=seed,
            **MODES[mode],
        )
        self._progress.say(f"fine-tuning on {task.name} ({mode})")
        place, origin = self._folder.path / "tasks" / f"{task.name}-{mode}-{name}", task.source.recorded()
        finetune_rows(task.data, origin, model, place, settings=settings, device=self._device, progress=self._progress)
        resamples = Resamples.read(place)
        assert resamples is not None, "kinds with labels have scores per row"
        resamples.write(_made(scores))
        shutil.rmtree(place, ignore_errors=True)


def non_embedding_parameters(model: Backbone) -> int:
    """Return the number of parameters outside of embedding tables."""
    tables = {
        id(module.weight): module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding)
    }
    return model.parameter_count() - sum(tables.values())


def _is_scored(folder: Path) -> bool:
    return Resamples.read(folder) is not None


def _made(folder: Path) -> Path:
    """Create a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
