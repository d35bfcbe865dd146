"""Augmented training rows: which, how many, with which labels, and for which tasks they are rejected."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError, DataError
from cloze.predict import evaluate_examples
from cloze.progress import Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.augmentation import augment_rows
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from tests.train.distillation.test_distill import make_source
from tests.train.finetuning.test_finetune import FAST, make_rows, write
from tests.train.finetuning.test_finetune_options import several
from tests.train.made import Listener
from tests.train.pretraining.test_pretrain import weights

WAYS = ["contextual", "edits"]


def settings_of(way: str, **changes: Any) -> FinetuneSettings:
    return replace(FAST, **{"augment": way, **changes})


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(
        "classify", write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(8, 1))
    )


def make(data: TaskData, base: Path, settings: FinetuneSettings) -> LabelledTexts:
    made = augment_rows(data, load_folder(base), settings, "cpu", Silent())
    assert isinstance(made, LabelledTexts)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_rows_keep_their_labels_and_places(base: Path, source: Source, way: str) -> None:
    data = read_task(source)
    rows = data.train
    assert isinstance(rows, LabelledTexts)
    assert rows.targets is not None
    made = make(data, base, settings_of(way, augment_copies=2))
    assert made.targets is not None
    assert len(made) == len(made.targets) == len(made.places) == 3 * 40
    assert (made.texts[:40], list(made.targets[:40])) == (rows.texts, list(rows.targets))
    for text, target, place in zip(made.texts[40:], made.targets[40:], made.places[40:], strict=True):
        row = rows.places.index(place)
        assert target == rows.targets[row]
        assert text.strip()
        assert text != rows.texts[row]
        assert abs(len(text.split()) - len(rows.texts[row].split())) <= 1, "one word of six or seven"
    assert made.texts[40:80] != made.texts[80:], "all copies differ"


@pytest.mark.parametrize("way", WAYS)
def test_rows_follow_from_the_seed(base: Path, source: Source, way: str) -> None:
    data = read_task(source)
    first, again, other = (make(data, base, settings_of(way, seed=seed)).texts for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("way", WAYS)
def test_run_tells_how_many_and_never_touches_dev(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    scored = []

    def watched(model: Any, kind: Any, examples: Any, metrics: Any) -> Any:
        scored.append(examples.texts)
        return evaluate_examples(model, kind, examples, metrics)

    monkeypatch.setattr("cloze.train.finetuning.finetune.evaluate_examples", watched)
    listener = Listener()
    run = run_finetuning(source, base, tmp_path / "run", settings=settings_of(way), progress=listener)
    assert f"40 augmented rows from 40 training rows ({way})" in listener.said
    assert scored
    assert all(texts == [row["text"] for row in make_rows(8, 1)] for texts in scored)
    plain = run_finetuning(source, base, tmp_path / "plain", settings=FAST)
    assert weights(run) != weights(plain)
    assert weights(run) == weights(run_finetuning(source, base, tmp_path / "again", settings=settings_of(way)))


def test_pairs_numbers_and_several_labels(base: Path, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.csv", [{**row, "other": "the cold river"} for row in make_rows(40)])
    data = read_task(Source("classify", pairs, pair="other"))
    for way in WAYS:
        made = make(data, base, settings_of(way))
        assert made.pairs is not None
        assert len(made.pairs) == len(made) == 72
    for source in (make_source("regress", tmp_path), Source("multilabel", several(tmp_path / "c.csv", 30))):
        data = read_task(source)
        made = make(data, base, settings_of("edits"))
        assert len(made) > 1.5 * len(data.train)
        assert made.targets is not None
        assert len(made.targets) == len(made)


def test_synonyms_of_the_user_are_used(base: Path, source: Source, tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("winter\tsnowtime\ngarden\tplot\n", encoding="utf-8")
    made = make(read_task(source), base, settings_of("edits", synonyms=str(path), augment_copies=4))
    assert made.targets is not None
    word_targets = {
        (word, target) for text, target in zip(made.texts, made.targets, strict=True) for word in text.split()
    }
    assert {pair for pair in word_targets if pair[0] in ("snowtime", "plot")} == {("plot", 0), ("snowtime", 1)}


def test_what_cannot_be_made_is_refused(base: Path, source: Source, tmp_path: Path) -> None:
    for kind in ("tag", "answer", "choose"):
        (tmp_path / kind).mkdir()
        other = make_source(kind, tmp_path / kind)
        with pytest.raises(
            ConfigError, match=f"augment applies only to classification and regression; the task here is {kind}"
        ):
            run_finetuning(other, base, tmp_path / "run", settings=settings_of("edits", max_length=32))
    tuned = run_finetuning(source, base, tmp_path / "tuned", settings=FAST)
    message = "augment contextual needs the head mlm, but this model has the heads: sequence; start from"
    with pytest.raises(ConfigError, match=message):
        run_finetuning(source, tuned, tmp_path / "run", settings=settings_of("contextual"))
    with pytest.raises(DataError, match="nowhere"):
        run_finetuning(
            source, base, tmp_path / "run", settings=settings_of("edits", synonyms=str(tmp_path / "nowhere"))
        )
    assert not (tmp_path / "run").exists(), "rejected before any work starts"
    run_finetuning(source, tuned, tmp_path / "run", settings=settings_of("edits"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": "edits", "augment_copies": 0}, "augment_copies is 0; expected at least 1"),
        ({"augment_copies": 2}, "augment_copies is 2, but augment is none; choose contextual or edits as augment"),
        ({"synonyms": "x.txt"}, "synonyms only apply to edits, but augment is none"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuneSettings(**changes)
