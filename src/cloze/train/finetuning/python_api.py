"""``cloze.finetune``, ``adapt`` and ``distill``: training on files or data in memory, and the run that they return.

Without ``out``, the run is in a temporary folder, which is deleted together with the returned object.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.corpus.record_files import documents_as_files
from cloze.errors import ConfigError
from cloze.files import read_json, replaced_folder
from cloze.models import SHIPPED_MODEL
from cloze.options import check_given_once, make_settings
from cloze.predict import Model, evaluate_examples, load
from cloze.progress import Progress, choose_progress
from cloze.tasks.in_memory import TableSource, as_table_source
from cloze.tasks.registry import announce_default_model, is_unlabelled, read_task
from cloze.tasks.reports import (
    CONFUSION_FILE,
    PREDICTIONS,
    html_report,
    prediction_rows,
    read_predictions,
    scores_of,
    text_report,
)
from cloze.tasks.rows import OnBadRow, RowSettings, Source
from cloze.train.distillation.settings import AdaptSettings
from cloze.train.finetuning.settings import FinetuneSettings, RankingSettings, SearchSettings, SimilaritySettings
from cloze.train.run import Run, series, svg_curve

if TYPE_CHECKING:
    from cloze.train.distillation.settings import DistillSettings, TextDistillSettings

_COLOURS = ("#4269d0", "#ff725c")


class FinetuneRun(os.PathLike[str]):
    """A finished run: its model, scores, curves and predictions. It is also the path of its folder.

    Args:
        folder: The run's folder; also an attribute.
        source, temporary: Set by ``cloze.finetune``: the rows, and a folder to delete with this object.

    Example:
        >>> run = cloze.finetune("classify", (["good", "bad"] * 20, ["pos", "neg"] * 20), epochs=2)
        >>> run.metrics["accuracy"], run.intervals["accuracy"], run.model.classify(["good"])
        >>> run = run.save("runs/mood")
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, source: Source | None = None, temporary: Path | None = None
    ) -> None:
        self.folder = Path(folder)
        self._source = source
        self._delete = None if temporary is None else weakref.finalize(self, shutil.rmtree, temporary, True)

    @cached_property
    def model(self) -> Model:
        """The fine-tuned model, loaded at its first use."""
        return load(self.folder)

    @property
    def results(self) -> dict[str, Any]:
        """The contents of ``eval_results.json``."""
        return Run(self.folder).results()

    @property
    def metrics(self) -> dict[str, float]:
        """The scores on the dev rows, the main metric first."""
        return scores_of(self.results)

    @property
    def intervals(self) -> dict[str, list[float]]:
        """The 95 % interval of each score, by a bootstrap over the dev rows; empty without scores per row."""
        return dict(self.results.get("intervals", {}))

    @property
    def baseline(self) -> dict[str, Any] | None:
        """The scores of a simple model on the same rows, and the paired difference; for a search, of its best run."""
        found: dict[str, Any] | None = self.results.get("best_results", self.results).get("baseline")
        return found

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of the training, one dict per logged step or evaluation."""
        return Run(self.folder).metrics()

    @cached_property
    def predictions(self) -> list[dict[str, Any]]:
        """The dev rows with their texts, labels, predictions and probabilities; empty for kinds without labels."""
        path, rows = self.folder / PREDICTIONS, list[dict[str, Any]]()
        if path.is_file():
            rows = [*read_predictions(path)]
        elif self._source is not None and not is_unlabelled(self._source.task):
            data = read_task(self._source)  # a run that did not record its predictions: predict again
            rows = [*prediction_rows(evaluate_examples(self.model, data.kind, data.dev, data.metrics))]
        return [row | {"probability": float(row["probability"])} if "probability" in row else row for row in rows]

    @property
    def confusion(self) -> dict[str, Any] | None:
        """The confusion matrix of a classification: labels, and counts whose rows are the true labels."""
        path = self.folder / CONFUSION_FILE
        return read_json(path) if path.is_file() else None

    def save(self, folder: str | os.PathLike[str]) -> "FinetuneRun":
        """Copy the run to a new folder, which ``cloze.load`` and every command accept; return the copy."""
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(f"{target}: exists and is not empty; choose another folder")
        with replaced_folder(target) as temporary:
            shutil.copytree(self.folder, temporary, dirs_exist_ok=True)
        return FinetuneRun(target, source=self._source)

    def close(self) -> None:
        """Delete the folder of a temporary run; do nothing for other runs."""
        if self._delete is not None:
            self._delete()

    def __enter__(self) -> "FinetuneRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __fspath__(self) -> str:
        return str(self.folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, os.PathLike) and self.folder == Path(other)

    def __hash__(self) -> int:
        return hash(self.folder)

    def __str__(self) -> str:
        return text_report(self._title, self.results)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name}={value:.4f}" for name, value in list(self.metrics.items())[:2])
        return f"FinetuneRun({str(self.folder)!r}{', ' + scores if scores else ''})"

    @property
    def _title(self) -> str:
        temporary = " (temporary; keep it with save)" if self._delete is not None and self._delete.alive else ""
        return f"Fine-tuned model in {self.folder}{temporary}"

    def _repr_html_(self) -> str:
        history = self.history
        dev = next((name for row in history for name in row if name.startswith("dev_")), None)
        shown = zip(["loss", *([] if dev is None else [dev])], _COLOURS, strict=False)
        curves = [svg_curve(name, *series(history, name), colour) for name, colour in shown]
        return html_report(self._title, self.results, curves, self.confusion)


def finetune(
    task: str | Source,
    train: Any = None,
    dev: Any = None,
    *,
    model: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    text: str = RowSettings.text,
    pair: str | None = RowSettings.pair,
    label: str = RowSettings.label,
    options: str = RowSettings.options,
    on_bad_row: OnBadRow | None = None,
    settings: FinetuneSettings | None = None,
    similarity: SimilaritySettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
    **more: Any,
) -> FinetuneRun:
    """Fine-tune a model on rows from a file or in memory; the same call resumes an unfinished run.

    Args:
        task: What to learn: classify, multilabel, regress, tag, answer, choose, similarity, retrieval, rerank,
            correction, or a published task. Or a ``Source``, followed by the model and the run's folder.
        train: The training rows: a path, ``(texts, labels)``, a data frame, an Arrow table, or any iterable of rows.
        dev: The dev rows, in any of these forms; by default, a tenth of the training rows is held out.
        model: The model folder or run to start from, or a model or hub name; by default, the shipped model
            that suits the task.
        out: The run's folder; by default a temporary one, which is deleted together with the returned object.
        text: The column with the texts.
        pair: The column with the second texts of pairs, if there are any.
        label: The column with the labels.
        options: For choose: the column with a list of options, or comma-separated columns with one each.
        on_bad_row: ``stop``, or ``skip`` and count.
        settings: The training settings; alternatively, pass its fields by name.
        similarity: Settings of the tasks ``similarity``, ``retrieval`` and ``rerank``; or pass its fields by name.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: A listener; True for a progress bar, False for none. By default, a bar on terminals and in notebooks,
            otherwise a line every ten seconds on standard error.
        **more: Fields of ``FinetuneSettings`` and ``RankingSettings``; ``grid``, ``seeds`` or ``folds``: a search.

    Returns:
        The run, with ``model``, ``metrics``, ``history`` and ``predictions``; it is also the path of its folder.

    Raises:
        ConfigError: If settings do not fit the task or the model, or differ from those of the run to resume.
        DataError: If rows cannot be read; the message states the location of the row.

    Example:
        >>> rows = {"text": ["good", "bad"] * 20, "label": ["pos", "neg"] * 20}
        >>> run = cloze.finetune("classify", rows, epochs=2)
        >>> run.model.classify(["good"])
    """
    made, made_similarity, search_settings = make_settings(
        (FinetuneSettings, RankingSettings, SearchSettings), check_given_once(more, settings), _arguments(finetune)
    )
    if isinstance(task, Source):
        source, model, out = task, train if model is None else model, dev if out is None else out
    else:
        source = Source(task, train, dev, text, pair, label, on_bad_row, options)
    common: dict[str, Any] = {"settings": settings or made, "device": device, "fresh": fresh}
    common["progress"] = choose_progress(progress)
    if model is None:
        model = announce_default_model(source.task, common["progress"])
    trainer = _trainer(source, _model_path(model), search_settings, similarity or made_similarity, common)
    return _in_folder(source, out, trainer)


def _trainer(
    source: Source, model: str, search_settings: SearchSettings, similarity: SimilaritySettings, common: dict[str, Any]
) -> Callable[[Path], Path]:
    """Return the function that trains into a folder: a single run, or a search over several."""
    if search_settings.several:
        from cloze.train.finetuning.search import search

        return lambda folder: search(source, model, folder, search_settings=search_settings, **common)
    from cloze.train.finetuning.finetune import run_finetuning

    return lambda folder: run_finetuning(source, model, folder, similarity=similarity, **common)


def adapt(
    task: str | Source,
    domain: Any,
    train: Any = None,
    dev: Any = None,
    *,
    model: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    test: Any = None,
    text: str = RowSettings.text,
    pair: str | None = RowSettings.pair,
    label: str = RowSettings.label,
    adaptation: AdaptSettings | None = None,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
    **more: Any,
) -> FinetuneRun:
    """Adapt a model to a domain and a task, fine-tune from each start, and keep the start with a significant gain.

    Args:
        task: What to learn, as for ``finetune``; or a ``Source``, followed by the domain, the model and the folder.
        domain: Text of the domain, without labels: a list of files, or documents in memory (a data frame, a data set,
            a generator of texts, or ``{"text": [...]}``).
        train, dev: The training and dev rows, as for ``finetune``.
        model, out: The model folder to start from and the run's folder, as for ``finetune``.
        test: Further rows that the domain text must not contain.
        text, pair, label: The columns, as for ``finetune``.
        adaptation: Steps of further pre-training, number of seeds, and the handling of overlapping rows.
        settings: The fine-tuning settings.
        device, fresh, progress: As for ``finetune``.
        **more: Fields of ``AdaptSettings`` and ``FinetuneSettings``.

    Returns:
        The run of the best start; ``results`` has the scores and gains of all starts.

    Raises:
        ConfigError, DataError: As for ``finetune``; ``DataError`` also if the domain text contains evaluation rows.

    Example:
        >>> rows, domain = (["good", "bad"] * 20, ["pos", "neg"] * 20), {"text": ["The film was good."] * 200}
        >>> small = {"domain_steps": 5, "task_steps": 5, "adapt_batch_size": 2, "adapt_max_length": 16}
        >>> run = cloze.adapt("classify", domain, rows, seeds=1, epochs=1, **small)
    """
    from cloze.train.finetuning.domain_adaptation import adapt as train_starts

    made, made_settings = make_settings(
        (AdaptSettings, FinetuneSettings), check_given_once(more, adaptation, settings), _arguments(adapt)
    )
    if isinstance(task, Source):
        source, model, out = task, train if model is None else model, dev if out is None else out
    else:
        source = Source(task, train, dev, text, pair, label)
    rows = None if test is None else as_table_source(test, "test", text=text, pair=source.pair, label=label)
    common: dict[str, Any] = {"adaptation": adaptation or made, "settings": settings or made_settings, "test": rows}
    common |= {"device": device, "fresh": fresh, "progress": choose_progress(progress)}

    def train_into(folder: Path) -> Path:
        with documents_as_files(domain, folder, source.text) as paths:
            return train_starts(source, paths, _model_path(model), folder, **common)

    return _in_folder(source, out, train_into)


def distill(
    task: str | Source | None = None,
    train: Any = None,
    dev: Any = None,
    *,
    model: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    unlabelled: Any = None,
    text: Any = RowSettings.text,
    pair: str | None = RowSettings.pair,
    label: str = RowSettings.label,
    options: str = RowSettings.options,
    settings: "DistillSettings | TextDistillSettings | None" = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
    **more: Any,
) -> FinetuneRun:
    """Distil a fine-tuned model into a smaller one, or any model on raw text; the same call resumes an unfinished run.

    Args:
        task: The teacher's task; or a ``Source``, followed by the teacher and the folder. None to distil on ``text``.
        train, dev: The training and dev rows, as for ``finetune``; they must have the teacher's labels.
        model: The fine-tuned teacher: a folder or a run.
        out: The run's folder; by default a temporary one.
        unlabelled: Additional texts, which the teacher labels: a path or data in memory.
        text, pair, label, options: The columns, as for ``finetune``. Without a task, ``text`` is the raw text: files,
            a folder written by ``prepare``, or documents in memory as for ``prepare``.
        settings: The student, the losses, and the training settings; or pass its fields by name.
        device, fresh, progress: As for ``finetune``.
        **more: Fields of ``DistillSettings``; without a task, of ``TextDistillSettings``.

    Returns:
        The run of the student.

    Raises:
        ConfigError, DataError: As for ``finetune``.
        RequestError: If the teacher was not fine-tuned for the task.

    Example:
        >>> rows = (["good", "bad"] * 20, ["pos", "neg"] * 20)
        >>> student = cloze.distill("classify", rows, model=cloze.finetune("classify", rows, epochs=2), layers=2)
        >>> small = cloze.distill(text=["books.txt"], model="cloze-mini", objective="vectors", layers=2, steps=100)
    """
    from cloze.train.distillation.distill import distill as train_student
    from cloze.train.distillation.settings import DistillSettings

    common: dict[str, Any] = {"device": device, "fresh": fresh, "progress": choose_progress(progress)}
    if task is None:
        from cloze.train.distillation.text_distillation import distill_documents

        common |= {"settings": settings, "more": more, "rows": {"train": train, "dev": dev, "unlabelled": unlabelled}}
        return _in_folder(None, out, lambda folder: distill_documents(text, _model_path(model), folder, **common))
    (made,) = make_settings((DistillSettings,), check_given_once(more, settings), _arguments(distill))
    if isinstance(task, Source):
        source, model, out = task, train if model is None else model, dev if out is None else out
    else:
        source = Source(task, train, dev, text, pair, label, None, options)
    more_rows: TableSource | None = None
    if unlabelled is not None:
        more_rows = as_table_source(unlabelled, "unlabelled", text=source.text, pair=source.pair, label=source.label)
    common |= {"settings": settings or made, "unlabelled": more_rows}
    return _in_folder(source, out, lambda folder: train_student(source, _model_path(model), folder, **common))


def _in_folder(source: Source | None, out: str | os.PathLike[str] | None, train: Callable[[Path], Path]) -> FinetuneRun:
    """Train into ``out``, or into a temporary folder, which is deleted if the training fails."""
    if out is not None:
        return FinetuneRun(train(Path(out)), source=source)
    temporary = Path(tempfile.mkdtemp(prefix="cloze-"))
    try:
        return FinetuneRun(train(temporary / "run"), source=source, temporary=temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _model_path(model: Any) -> str:
    """Return the model to start from as a path or a name."""
    if model is None:
        return SHIPPED_MODEL
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(f"model is a {type(model).__name__}; expected a model folder, a run, or a name")
    return os.fspath(model)


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's own parameters, to suggest them for a misspelled setting."""
    return [name for name in signature(function).parameters if name != "more"]
