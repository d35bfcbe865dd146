"""``cloze adapt``: domain-adaptive and task-adaptive pre-training before fine-tuning (Gururangan et al., 2020).

Four models are fine-tuned over the same seeds: the given model, and the model after further pre-training on the domain
text, on the task's training texts, and on both. The results list the gain of each over the given model, paired by seed
and by dev row. The given model, fine-tuned directly, is kept unless the 95 % interval of a gain excludes zero. Every
step is a separate run in the run's folder, so the same command resumes it.

The domain text must not contain evaluation rows, or the scores would be too high. Texts are compared by word n-grams,
ignoring case, punctuation and whitespace; each Chinese character is a word. A row occurs in a document if the document
contains any eight consecutive words of it, or all of its words if it has fewer. Rows with fewer than four words are
ignored, because they occur by chance. JSONL and Parquet files are parsed as by ``cloze prepare``, since JSON may escape
characters.
"""

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloze.checkpoint import base_files, find_model, find_source
from cloze.checkpoint.folder import file_digest
from cloze.corpus.documents import read_any_documents
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.errors import CheckpointError, ConfigError, DataError, format_option
from cloze.files import replaced_file, replaced_folder
from cloze.progress import Progress, Silent
from cloze.tasks.comparisons import difference_facts
from cloze.tasks.examples import fingerprint
from cloze.tasks.in_memory import RowsInMemory, TableSource
from cloze.tasks.intervals import Difference
from cloze.tasks.kind import PlacedTexts
from cloze.tasks.registry import TaskData, find_task, read_task
from cloze.tasks.rows import Source
from cloze.train.distillation.settings import AdaptSettings
from cloze.train.finetuning.defaults import keep_recorded_length
from cloze.train.finetuning.search import compare_searches, search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.finetuning.trainable import load_checked_base
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.run import Run

_WORD = re.compile(r"[㐀-䶿一-鿿]|[^\W_]+")
_MAX_WORDS, _MIN_WORDS = 8, 4  # length of the n-grams
_SHOWN = 3  # number of locations in the error message
# The text column of JSONL and Parquet files, the same as in the preparation that follows.
_COLUMN = PrepareSettings.text

Rows = Iterable[tuple[str, Sequence[str]]]  # (location, texts) of each row


def refuse_overlap(texts: Sequence[Path], rows: Rows) -> None:
    """Raise ``DataError`` if rows occur in text files."""
    places = list(find_overlap(texts, rows))
    if places:
        shown = ", ".join(places[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
        raise DataError(
            f"{len(places)} evaluation rows occur in the text to adapt on ({shown}); give "
            f"{format_option('overlap', 'drop')} to leave out the documents in which they occur, or "
            f"{format_option('overlap', 'allow')} to accept scores that are too high"
        )


def find_overlap(texts: Sequence[Path], rows: Rows) -> Iterator[str]:
    """Yield the locations of rows that occur in the texts, in the order of the rows."""
    index = _NgramIndex(rows)
    overlapping = set[str]()
    for document in read_any_documents(texts, _COLUMN):
        overlapping |= index.find(document)
    return (place for place in index.places if place in overlapping)


def write_without_overlap(texts: Sequence[Path], rows: Rows, path: Path) -> int:
    """Write the documents in which no row occurs, and return how many were dropped."""
    index, dropped = _NgramIndex(rows), 0
    # errors="replace": JSON can hold a lone surrogate, which UTF-8 cannot.
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        for document in read_any_documents(texts, _COLUMN):
            if index.find(document):
                dropped += 1
            else:
                file.write("\n".join(document) + "\n\n")
    if not path.stat().st_size:
        path.unlink()
        raise DataError(f"evaluation rows occur in every document to adapt on ({dropped}); no documents are left")
    return dropped


class _NgramIndex:
    """Maps the word n-grams of rows to the locations of the rows."""

    def __init__(self, rows: Rows) -> None:
        self._places: dict[tuple[str, ...], list[str]] = {}
        for place, texts in rows:
            for text in texts:
                words = _words(text)
                for ngram in _ngrams(words, min(_MAX_WORDS, len(words))) if len(words) >= _MIN_WORDS else ():
                    self._places.setdefault(ngram, []).append(place)
        self._lengths = sorted({len(ngram) for ngram in self._places})

    @property
    def places(self) -> Iterable[str]:
        """The locations of all indexed rows in their order, without duplicates."""
        return dict.fromkeys(place for places in self._places.values() for place in places)

    def find(self, document: Sequence[str]) -> set[str]:
        """Return the source locations of the rows whose text occurs in the document."""
        words = _words(" ".join(document))
        ngrams = (ngram for length in self._lengths for ngram in _ngrams(words, length))
        return {place for ngram in ngrams for place in self._places.get(ngram, ())}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ngrams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def read_other_splits(source: Source) -> list[PlacedTexts]:
    """Return the rows of a published task's splits other than train and dev, without their labels."""
    spec = find_task(source.task)
    return spec.read_other_splits(source) if spec.published and source.path.is_dir() else []


def read_test_file(source: Source, path: TableSource) -> list[PlacedTexts]:
    """Return the rows of the user's test file, which has the columns of the training file; labels are optional."""
    spec = find_task(source.task)
    if spec.published:
        raise ConfigError(
            f"test is {path}, but {source.task} has its own test files, which are always evaluated; "
            f"omit test, or use the task {spec.kind} for your own files"
        )
    assert spec.kind.read_texts is not None, "kinds with labels can read texts without them"
    return spec.kind.read_texts(source, path)


_LOOKING = "looking for dev and test rows in the text"
# Names, in the results, of the starting points that are compared.
DIRECT, DOMAIN, TASK, BOTH = "direct", "domain", "task", "domain + task"


def adapt(
    source: Source,
    domain: Sequence[str | Path],
    model: str | Path,
    out: str | Path,
    *,
    test: TableSource | str | None = None,
    adaptation: AdaptSettings | None = None,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Adapt a model to a domain and a task, fine-tune from each start, and keep the start with a significant gain.

    Args:
        source: The task and its files.
        domain: Text files of the domain, without labels.
        model: The model folder to start from.
        out: The run's folder.
        test: A file or data in memory with further rows that the domain text must not contain.
        adaptation: Steps of further pre-training, number of seeds, and the handling of overlapping rows.
        settings: The fine-tuning settings.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder.
    """
    adaptation, progress = adaptation or AdaptSettings(), progress or Silent()
    settings = keep_recorded_length(settings or FinetuneSettings(), out, fresh=fresh)
    adaptation.pretraining(adaptation.domain_steps, settings)  # rejects bad values before anything is read
    data, texts = read_task(source), [Path(text) for text in domain]
    test_rows = _read_test_rows(source, test, adaptation)
    load_checked_base(data, model, settings)  # rejects what fine-tuning would reject, before the long pre-training
    if adaptation.overlap == "refuse":
        progress.say(_LOOKING)
        refuse_overlap(texts, _evaluation_rows(data, test_rows))
    recorded = {
        "command": "adapt",
        "model": str(Path(model)),
        "base": base_files(model),
        "domain": [str(text) for text in texts],
        # By content, since the texts without evaluation rows are written only once.
        "domain_files": [file_digest(text) for text in texts],
        **source.recorded(),
        "content": fingerprint(data.train, data.dev),
        "test": None if test is None else test.recorded() if isinstance(test, RowsInMemory) else str(test),
        "test_content": hashlib.sha256(repr([texts for _, texts in test_rows]).encode()).hexdigest(),
    }
    with Run.open(Path(out), recorded | asdict(adaptation) | asdict(settings), fresh=fresh) as run:
        if not run.report_finished(progress):
            texts, task_text = _write_texts(texts, data, test_rows, run.folder, adaptation, progress)
            starts = _pretrain_starts(run, texts, task_text, model, adaptation, settings, device, progress)
            results: dict[str, dict[str, Any]] = {}
            for name, start in starts.items():
                progress.say(f"{name}:")
                seeds = SearchSettings(seeds=adaptation.seeds)
                place = run.folder / "tuned" / name.replace(" + ", "-")
                tuned = search(
                    source, start, place, settings=settings, search_settings=seeds, device=device, progress=progress
                )
                results[name] = {"folder": str(tuned.relative_to(run.folder)), **Run(tuned).results()}
            _finish(run, results, data.metrics[0])
        return run.folder


def _pretrain_starts(
    run: Run,
    texts: Sequence[Path],
    task_text: Path,
    model: str | Path,
    adaptation: AdaptSettings,
    settings: FinetuneSettings,
    device: str | None,
    progress: Progress,
) -> dict[str, str | Path]:
    """Return the models to fine-tune by name: the given one, and those pre-trained further on domain, task and both."""
    pretrainer = _FurtherPretraining(run.folder, adaptation, settings, device, progress)
    starts: dict[str, str | Path] = {DIRECT: model}
    starts[DOMAIN] = pretrainer.pretrain(texts, model, "domain", adaptation.domain_steps)
    starts[TASK] = pretrainer.pretrain([task_text], model, "task", adaptation.task_steps)
    starts[BOTH] = pretrainer.pretrain([task_text], starts[DOMAIN], "domain-task", adaptation.task_steps)
    return starts


class _FurtherPretraining:
    """Further pre-trains models on unlabelled text; each step has its own prepared corpus and run."""

    def __init__(
        self,
        folder: Path,
        settings: AdaptSettings,
        finetuning: FinetuneSettings,
        device: str | None,
        progress: Progress,
    ) -> None:
        self._folder, self._settings, self._finetuning = folder, settings, finetuning
        self._device, self._progress = device, progress

    def pretrain(self, texts: Sequence[Path], model: str | Path, name: str, steps: int) -> Path:
        """Prepare the text files and pre-train the model on them; return the run's folder."""
        self._progress.say(f"pre-training: {name}")
        model_folder = find_model(find_source(model))
        if model_folder is None:
            raise CheckpointError(
                f"{model}: not a model folder; give one that pretrain, finetune or convert has written"
            )
        preparation = PrepareSettings(held_out=self._settings.held_out)
        corpus = self._folder / f"{name}-text"
        data = prepare(texts, model_folder[0], corpus, settings=preparation, progress=self._progress)
        settings = self._settings.pretraining(steps, self._finetuning)
        out = self._folder / name
        return pretrain(data, out, model=model, settings=settings, device=self._device, progress=self._progress)


def _read_test_rows(source: Source, test: TableSource | str | None, adaptation: AdaptSettings) -> list[PlacedTexts]:
    """Read the rows besides the dev rows on which the model may be evaluated later."""
    if test is None:
        return [] if adaptation.overlap == "allow" else read_other_splits(source)
    if adaptation.overlap == "allow":
        allowed = format_option("overlap", "allow")
        raise ConfigError(f"test is {test}, but {allowed} disables the check for overlaps; leave out one of them")
    return read_test_file(source, Path(test) if isinstance(test, str) else test)


def _evaluation_rows(data: TaskData, test_rows: Sequence[PlacedTexts]) -> Iterator[PlacedTexts]:
    """Yield all rows that the model may be evaluated on."""
    yield from zip(data.dev.places, data.dev.documents(), strict=True)
    yield from test_rows


def _write_texts(
    texts: list[Path],
    data: TaskData,
    test_rows: Sequence[PlacedTexts],
    folder: Path,
    adaptation: AdaptSettings,
    progress: Progress,
) -> tuple[list[Path], Path]:
    """Return the files of the domain and the task text, without overlapping documents if the settings require it."""
    if adaptation.overlap == "drop":
        texts = [_without_overlap(texts, _evaluation_rows(data, test_rows), folder / "domain.txt", progress)]
    task_text = _write_task_text(data, folder / "task.txt")
    if adaptation.overlap != "allow":
        # Fine-tuning uses the training rows in any case; pre-training on evaluation text would favour some starts.
        clean = folder / "task-clean.txt"
        task_text = _without_overlap([task_text], _evaluation_rows(data, test_rows), clean, progress)
    return texts, task_text


def _without_overlap(texts: Sequence[Path], rows: Rows, path: Path, progress: Progress) -> Path:
    """Write the documents that contain none of the rows to ``path``; an existing file is complete and is reused."""
    if not path.is_file():
        progress.say(_LOOKING)
        dropped = write_without_overlap(texts, rows, path)
        progress.say(f"{path.name}: documents dropped because they contain evaluation rows: {dropped:,}")
    return path


def _write_task_text(data: TaskData, path: Path) -> Path:
    """Write the training rows' texts to a text file, one document per row."""
    documents = ["\n".join(" ".join(text.split()) for text in texts) for texts in data.train.documents()]
    with replaced_file(path) as temporary:
        temporary.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def choose_start(means: Mapping[str, float], gains: Mapping[str, Difference | None]) -> tuple[str, str]:
    """Return the start to keep, with the reason: the best with a significant gain, otherwise the direct one.

    Args:
        means: The mean score of each start.
        gains: The gain of each other start over the direct one; None if it has no interval.
    """
    better = [name for name, gain in gains.items() if gain is not None and gain.low > 0]
    if better:
        kept = max(better, key=means.__getitem__)
        gain = gains[kept]
        assert gain is not None, "its gain has an interval"
        return kept, f"{kept}: {gain.in_points()}"
    if None in gains.values():
        return DIRECT, "the gains have no interval, because the runs lack scores per row: the direct model is kept"
    if all(gain is not None and gain.high < 0 for gain in gains.values()):
        return DIRECT, "every other start is worse: the direct model is kept"
    return DIRECT, "within noise: the direct model is kept"


def _finish(run: Run, results: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """Write the score and gain of each start, and copy the model of the chosen one into the run's folder."""
    folders = {name: run.folder / result["folder"] for name, result in results.items()}
    means = {name: result["mean"] for name, result in results.items()}
    gains = {name: compare_searches(folder, folders[DIRECT]) for name, folder in folders.items() if name != DIRECT}
    kept, reason = choose_start(means, gains)
    table = {
        name: {key: result[key] for key in ("mean", "deviation", "runs", "least", "most", "failed")}
        | (difference_facts(gains[name]) if name in gains else {})
        for name, result in results.items()
    }
    best = max(means, key=means.__getitem__)
    run.write_results({"metric": metric, "starts": table, "best": best, "kept": kept, "reason": reason})
    with replaced_folder(run.model_folder) as temporary:
        shutil.copytree(Run(folders[kept]).model_folder, temporary, dirs_exist_ok=True)
