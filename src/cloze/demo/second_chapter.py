"""The demo's second chapter: the model that is shipped, on the same blanks and the same task.

It has read those very books, all but four. So it is compared on sentences of these, which the demo's own model has not
read either.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloze.demo.results import DemoSettings, SecondChapter
from cloze.models import SHIPPED_MODEL
from cloze.predict import evaluate, load
from cloze.progress import Progress
from cloze.tasks.source import Source
from cloze.train.finetuning.finetune import finetune

UNREAD = "order_unread.tsv"


def tune_shipped(data: Path, out: Path, settings: DemoSettings, progress: Progress) -> list[Path]:
    """Fine-tune the shipped model on the demo's task, once a seed."""
    source = Source("classify", data / "order_train.tsv", data / "order_dev.tsv")
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
    source = Source("classify", data / UNREAD)
    model = load(SHIPPED_MODEL)
    config = model.bert.config
    return SecondChapter(
        name=SHIPPED_MODEL,
        told=f"{config.layers} layers, hidden size {config.hidden_size}, {model.bert.parameter_count():,} parameters",
        blanks=[[(word.token, word.probability) for word in model.fill(sentence)[0]] for sentence in sentences],
        shipped=[evaluate(run, source).metrics["accuracy"] for run in shipped],
        own=[evaluate(run, source).metrics["accuracy"] for run in own],
    )
