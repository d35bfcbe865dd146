"""The demo's stages, each a call of the product: what is done already is not done again.

vocab/  data/  pretraining/  scratch/  finetuning/<start>-<seed>/  second/<model>-<seed>/  report.html  results.json

The demo's second chapter: the model that is shipped, on the same blanks and the same task.

It has read those very books, all but four. So it is compared on sentences of these, which the demo's own model has not
read either.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from cloze.checkpoint import ModelFolder, save_folder
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.demo.results import (
    Blank,
    DemoResults,
    DemoSettings,
    SecondChapter,
    paired_margin,
    record_results,
    recorded_results,
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
from cloze.train.finetuning.finetune import finetune
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings

UNREAD = "order_unread.tsv"


def tune_shipped(data: Path, out: Path, settings: DemoSettings, progress: Progress) -> list[Path]:
    """Fine-tune the shipped model on the demo's task, once a seed."""
    source = Source(CLASSIFY.name, data / "order_train.tsv", data / "order_dev.tsv")
    return [
        finetune(
            source,
            SHIPPED_MODEL,
            out / f"{SHIPPED_MODEL}-{seed}",
            settings=replace(settings.second_finetuning, seed=seed),
            progress=progress,
        )
        for seed in settings.second_seeds
    ]


def second_chapter(data: Path, sentences: Sequence[str], own: Sequence[Path], shipped: Sequence[Path]) -> SecondChapter:
    """What both models make of sentences that neither has read, and the shipped one of the blanks."""
    source = Source(CLASSIFY.name, data / UNREAD)
    model = load(SHIPPED_MODEL)
    config = model.bert.config
    return SecondChapter(
        name=SHIPPED_MODEL,
        told=f"{config.layers} layers, hidden size {config.hidden_size}, {model.bert.parameter_count():,} parameters",
        blanks=[[(word.token, word.probability) for word in model.fill(sentence)[0]] for sentence in sentences],
        shipped=[evaluate(run, source).metrics["accuracy"] for run in shipped],
        own=[evaluate(run, source).metrics["accuracy"] for run in own],
    )


DATA = Path(str(files("cloze.demo"))) / "data"
TEST = "order_test.tsv"
SEEDS = (0, 1, 2)
STARTS = ("pretrained", "scratch")
PRETRAINING, SCRATCH = "pretraining", "scratch"

Result = TypeVar("Result")


def run_demo(out: Path, progress: Progress, settings: DemoSettings | None = None) -> DemoResults:
    """Do what is not done yet, and return what there is to show."""
    settings = settings or DemoSettings()
    recorded = recorded_results(out, settings)
    if recorded is not None:
        return recorded
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
    shipped = clock.time("second chapter", lambda: tune_shipped(DATA, out / "second", settings, progress))
    progress.say("6/6  scoring the test books")
    results = _gather(out, shipped, clock)
    record_results(out, settings, results)
    return results


def _save_untrained(folder: Path, vocab: Path, settings: DemoSettings) -> None:
    """The same model with the same start, before it has read anything."""
    tokenizer = Tokenizer.from_folder(vocab).with_max_length(settings.pretraining.length)
    dropout = settings.pretraining.dropout
    config = preset(settings.pretraining.preset, tokenizer.size, dropout=dropout, attention_dropout=dropout)
    bert = Bert.fresh(config, ("mlm", "nsp"), seed=settings.pretraining.seed)
    save_folder(ModelFolder(bert, tokenizer), folder)


def _finetune(out: Path, start: str, seed: int, settings: DemoSettings, progress: Progress) -> Path:
    tuning = asdict(settings.finetuning) | {"seed": seed}
    return finetune(
        Source(CLASSIFY.name, DATA / "order_train.tsv", DATA / "order_dev.tsv"),
        out / (PRETRAINING if start == "pretrained" else SCRATCH),
        out / "finetuning" / f"{start}-{seed}",
        settings=FinetuneSettings(**tuning),
        progress=progress,
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
    accuracies = {start: [one.metrics["accuracy"] for one in found] for start, found in evaluations.items()}
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
        second=second_chapter(DATA, [blank.sentence for blank in blanks], own, shipped),
        facts=_facts(trained, out),
        seconds=clock.seconds,
    )


def _fill(line: str, trained: Model, untrained: Model) -> Blank:
    sentence, word = line.split("\t")
    answers = [[tuple(filled) for filled in model.fill(sentence)[0]] for model in (trained, untrained)]
    return Blank(sentence, word, answers[0], answers[1])  # type: ignore[arg-type]


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a bundled table."""
    header, *lines = (DATA / name).read_text("utf-8").splitlines()
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def bag_of_words_accuracy() -> float:
    """What counting words gets, trained and tested on the same rows: no claim without a simple baseline."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, test = read_table("order_train.tsv"), read_table(TEST)
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    model.fit([row["text"] for row in train], [row["label"] for row in train])
    return float(model.score([row["text"] for row in test], [row["label"] for row in test]))


def _confusion(labels: list[str], rows: list[dict[str, str]], evaluation: Evaluation) -> list[list[int]]:
    known = LabelSet(tuple(labels))
    truth = [known.indices[row["label"]] for row in rows]
    return confusion(known, truth, [known.indices[told] for told in evaluation.predictions])


def _examples(rows: list[dict[str, str]], evaluations: dict[str, list[Evaluation]]) -> list[dict[str, str]]:
    """The first rows of the test with what the first seed's models said: not picked by the outcome."""
    told = {start: found[0].predictions for start, found in evaluations.items()}
    return [row | {start: answers[index] for start, answers in told.items()} for index, row in enumerate(rows[:8])]


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
    """How long each stage took, added up over interruptions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def time(self, stage: str, work: Callable[[], Result]) -> Result:
        start = time.monotonic()
        try:
            return work()
        finally:
            spent = time.monotonic() - start
            if spent > 1:  # less means that it was done already
                self.seconds[stage] = round(self.seconds.get(stage, 0.0) + spent, 1)
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_json(self._path, self.seconds)
