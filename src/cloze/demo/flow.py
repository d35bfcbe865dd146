"""The stages of ``cloze demo``, each a call of the public API. Finished stages are skipped when the demo is run again.

The demo's folder contains vocab/, data/, pretraining/, scratch/, finetuning/<start>-<seed>/, second/<model>-<seed>/,
report.html and results.json.

The last stages ("second chapter") repeat the task with the shipped model, which was trained on the same books except
four. The two models are therefore compared on sentences of these four books, which neither model was trained on.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from cloze.checkpoint import ModelFolder, save_folder
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.demo.results_file import (
    Blank,
    DemoResults,
    DemoSettings,
    ShippedComparison,
    load_results,
    paired_margin,
    save_results,
)
from cloze.files import replace_json
from cloze.model import Bert, preset
from cloze.models import SHIPPED_MODEL
from cloze.predict import Evaluation, Model, evaluate, load
from cloze.progress import Progress
from cloze.tasks.classification.kind import CLASSIFY
from cloze.tasks.examples import LabelSet
from cloze.tasks.metrics import confusion
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.run import Run

DATA = Path(str(files("cloze.demo"))) / "data"
TEST, UNREAD = "order_test.tsv", "order_unread.tsv"
SEEDS = (0, 1, 2)
STARTS = ("pretrained", "scratch")
PRETRAINING, SCRATCH = "pretraining", "scratch"

Result = TypeVar("Result")


def run_demo(out: Path, progress: Progress, settings: DemoSettings | None = None) -> DemoResults:
    """Run the stages that are not finished yet.

    Args:
        out: The demo's folder.
        progress: Receives messages and progress.
        settings: Sizes of all stages.

    Returns:
        The results of all stages.
    """
    settings = settings or DemoSettings()
    saved = load_results(out, settings)
    if saved is not None:
        return saved
    clock = _Clock(out / "seconds.json")
    vocab, data, scratch = out / "vocab", out / "data", out / SCRATCH
    books = [DATA / "books.txt.xz"]
    if not vocab.exists():
        progress.say("1/6  learning a vocabulary")
        clock.time(
            "vocabulary", lambda: train_vocabulary(books, vocab, settings=settings.vocabulary, progress=progress)
        )
    progress.say("2/6  splitting and tokenizing the text")
    clock.time("preparation", lambda: prepare(books, vocab, data, settings=settings.preparation, progress=progress))
    progress.say("3/6  pre-training: masked words and next sentences")
    run = out / PRETRAINING
    clock.time("pre-training", lambda: pretrain(data, run, settings=settings.pretraining, progress=progress))
    if not scratch.exists():
        _save_untrained(scratch, vocab, settings)
    progress.say("4/6  fine-tuning on 'are these words in order?', three seeds, with and without pre-training")
    for seed in SEEDS:
        for start in STARTS:
            clock.time("fine-tuning", lambda: _finetune(out, start, seed, settings, progress))  # noqa: B023 (called at once)
    progress.say("5/6  the second chapter: the same task with the shipped model")
    shipped = clock.time("second chapter", lambda: finetune_shipped(DATA, out / "second", settings, progress))
    progress.say("6/6  scoring the test books")
    results = _gather(out, shipped, clock)
    save_results(out, settings, results)
    return results


def _save_untrained(folder: Path, vocab: Path, settings: DemoSettings) -> None:
    """Save the initial, untrained model, which is fine-tuned as the baseline without pre-training."""
    tokenizer = Tokenizer.from_folder(vocab).with_max_length(settings.pretraining.max_length)
    dropout = settings.pretraining.dropout
    config = preset(settings.pretraining.preset, tokenizer.size, dropout=dropout, attention_dropout=dropout)
    bert = Bert.fresh(config, ("mlm", "nsp"), seed=settings.pretraining.seed)
    save_folder(ModelFolder(bert, tokenizer), folder)


def _finetune(out: Path, start: str, seed: int, settings: DemoSettings, progress: Progress) -> Path:
    return run_finetuning(
        Source(CLASSIFY.name, DATA / "order_train.tsv", DATA / "order_dev.tsv"),
        out / (PRETRAINING if start == "pretrained" else SCRATCH),
        out / "finetuning" / f"{start}-{seed}",
        settings=replace(settings.finetuning, seed=seed),
        progress=progress,
    )


def finetune_shipped(data: Path, out: Path, settings: DemoSettings, progress: Progress) -> list[Path]:
    """Fine-tune the shipped model on the demo's task, once per seed."""
    source = Source(CLASSIFY.name, data / "order_train.tsv", data / "order_dev.tsv")
    return [
        run_finetuning(
            source,
            SHIPPED_MODEL,
            out / f"{SHIPPED_MODEL}-{seed}",
            settings=replace(settings.second_finetuning, seed=seed),
            progress=progress,
        )
        for seed in settings.second_seeds
    ]


def compare_shipped(
    data: Path, sentences: Sequence[str], own: Sequence[Path], shipped: Sequence[Path]
) -> ShippedComparison:
    """Score both models on sentences that neither was trained on, and fill the blanks with the shipped model.

    Args:
        data: The folder of the bundled tables.
        sentences: Sentences with a blank.
        own: Fine-tuned runs of the demo's own model.
        shipped: Fine-tuned runs of the shipped model.
    """
    source = Source(CLASSIFY.name, data / UNREAD)
    model = load(SHIPPED_MODEL)
    config, parameters = model.bert.config, model.bert.parameter_count()
    return ShippedComparison(
        name=SHIPPED_MODEL,
        description=f"{config.layers} layers, hidden size {config.hidden_size}, {parameters:,} parameters",
        blanks=[[(word.token, word.probability) for word in model.fill(sentence)[0]] for sentence in sentences],
        shipped=[evaluate(run, source).metrics["accuracy"] for run in shipped],
        own=[evaluate(run, source).metrics["accuracy"] for run in own],
    )


def _gather(out: Path, shipped: list[Path], clock: "_Clock") -> DemoResults:
    test = Source(CLASSIFY.name, DATA / TEST)
    evaluations = {
        start: [evaluate(out / "finetuning" / f"{start}-{seed}", test) for seed in SEEDS] for start in STARTS
    }
    trained, untrained = load(out / PRETRAINING), load(out / SCRATCH)
    rows = read_table(TEST)
    labels = sorted({row["label"] for row in rows})
    run = Run(out / PRETRAINING)
    accuracies = {start: [run.metrics["accuracy"] for run in runs] for start, runs in evaluations.items()}
    blanks = [_fill(line, trained, untrained) for line in (DATA / "sentences.txt").read_text("utf-8").splitlines()]
    own = [out / "finetuning" / f"pretrained-{seed}" for seed in SEEDS]
    return DemoResults(
        metrics=run.metrics(),
        held_out={name: value for name, value in run.results().items() if name.startswith("held_out_")},
        blanks=blanks,
        accuracies=accuracies,
        margin=paired_margin(accuracies["pretrained"], accuracies["scratch"]),
        baseline=bag_of_words_accuracy(),
        labels=labels,
        confusion=_confusion(labels, rows, evaluations["pretrained"][0]),
        examples=_examples(rows, evaluations),
        second=compare_shipped(DATA, [blank.sentence for blank in blanks], own, shipped),
        facts=_facts(trained, out),
        seconds=clock.seconds,
    )


def _fill(line: str, trained: Model, untrained: Model) -> Blank:
    sentence, word = line.split("\t")
    answers = [[tuple(filled) for filled in model.fill(sentence)[0]] for model in (trained, untrained)]
    return Blank(sentence, word, answers[0], answers[1])  # type: ignore[arg-type]


def read_table(name: str) -> list[dict[str, str]]:
    """Read the rows of a bundled table."""
    header, *lines = (DATA / name).read_text("utf-8").splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def bag_of_words_accuracy() -> float:
    """Return the accuracy of a bag-of-words baseline (TF-IDF, logistic regression) on the same rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, test = read_table("order_train.tsv"), read_table(TEST)
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    return float(model.score([row["text"] for row in test], [row["label"] for row in test]))


def _confusion(labels: list[str], rows: list[dict[str, str]], evaluation: Evaluation) -> list[list[int]]:
    label_set = LabelSet(tuple(labels))
    truth = [label_set.indices[row["label"]] for row in rows]
    return confusion(label_set, truth, [label_set.indices[prediction] for prediction in evaluation.predictions])


def _examples(rows: list[dict[str, str]], evaluations: dict[str, list[Evaluation]]) -> list[dict[str, str]]:
    """Return the first test rows with the predictions of the first seed's models; not selected by outcome."""
    predictions = {start: runs[0].predictions for start, runs in evaluations.items()}
    return [row | {start: labels[index] for start, labels in predictions.items()} for index, row in enumerate(rows[:8])]


def _facts(model: Model, out: Path) -> dict[str, str]:
    manifest = json.loads((out / "data" / "manifest.json").read_text("utf-8"))
    train = manifest["splits"]["train"]
    config = model.bert.config
    return {
        "model": f"{config.layers} layers, hidden size {config.hidden_size}, {config.heads} heads",
        "parameters": f"{model.bert.parameter_count():,}",
        "vocabulary": f"{model.tokenizer.size:,} pieces",
        "text": f"{train['documents']:,} chapters, {train['sentences']:,} sentences, {train['tokens']:,} tokens",
    }


class _Clock:
    """Measures the time of each stage, summed over interruptions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def time(self, stage: str, work: Callable[[], Result]) -> Result:
        start = time.monotonic()
        try:
            return work()
        finally:
            elapsed = time.monotonic() - start
            if elapsed > 1:  # a stage that takes less was already finished
                self.seconds[stage] = round(self.seconds.get(stage, 0.0) + elapsed, 1)
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_json(self._path, self.seconds)
