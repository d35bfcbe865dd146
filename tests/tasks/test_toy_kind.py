"""A task kind defined only in this module works everywhere after one registration.

Ordinal ratings: 1 to 4 stars on the sequence head. It is trained like classification; the prediction is the median of
the distribution over ordered classes, and the metric is the distance from the true rating.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torture.services import running

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder, save_folder
from cloze.cli import main
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert, BertConfig
from cloze.predict import evaluate, load
from cloze.serve.settings import ServiceSettings
from cloze.tasks.classification.decoding import Floats, probabilities
from cloze.tasks.classification.kind import LabelledTexts, read_own_texts, text_items
from cloze.tasks.kind import Predictor, TaskKind
from cloze.tasks.metrics import score
from cloze.tasks.registry import KINDS, find_task, registered
from cloze.tasks.reports import Evaluation
from cloze.tasks.rows import Source
from cloze.text import SPECIAL, Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings

WORDS = ("awful", "poor", "good", "great")
FILLERS = ("the", "film", "was", "a", "we", "saw", "it", "and")
QUICK = FinetuneSettings(epochs=6, batch_size=8, max_length=16, learning_rate=3e-3, dropout=0.0, precision="fp32")


def medians(predictor: Predictor, logits: Floats) -> list[int]:
    """Return the index of the median class of each text."""
    assert predictor.task is not None
    shares = probabilities(predictor.task, logits)
    return [int(np.searchsorted(np.cumsum(row), 0.5)) for row in shares]


def evaluate_stars(predictor: Predictor, examples: LabelledTexts, metrics: Sequence[str]) -> Evaluation:
    assert predictor.task is not None
    assert examples.targets is not None
    predicted = medians(predictor, predictor.logits(examples.texts, examples.pairs))
    names = predictor.task.names
    return Evaluation(
        score(metrics, examples.targets, predicted),
        [names[index] for index in predicted],
        examples.places,
        [names[index] for index in examples.targets],
        [{"text": text} for text in examples.texts],
    )


def respond_stars(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    assert predictor.task is not None
    names = predictor.task.names
    return [{"stars": int(names[index])} for index in medians(predictor, predictor.logits_encoded(inputs))]


STARS = TaskKind(
    name="stars",
    summary="Rate each text by one to four stars.",
    operation="classify",
    head="sequence",
    targets="index",
    metrics=("accuracy", "mse"),
    read=partial(read_own_texts, "index"),
    items=text_items,
    evaluate=evaluate_stars,
    respond=respond_stars,
    named_outputs=True,
    settings=frozenset({"long_texts"}),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    lines = ["text,label"]
    for number in range(240):
        words = [draw.choice(FILLERS) for _ in range(4)] + [WORDS[number % 4]]
        lines.append(f"{' '.join(words)},{number % 4 + 1}")
    path = tmp_path_factory.mktemp("stars") / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL, *WORDS, *FILLERS], lowercase=True)
    config = BertConfig(
        tokenizer.size, hidden_size=32, layers=1, heads=2, feedforward_size=64, positions=32, initial_deviation=0.2
    )
    folder = tmp_path_factory.mktemp("base") / "model"
    save_folder(ModelFolder(Bert.fresh(config, ["mlm"], seed=0), tokenizer), folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """Register the kind with a single call."""
    with registered(STARS):
        yield


@pytest.fixture(scope="module")
def tuned(base: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_finetuning(Source("stars", rows), base, tmp_path_factory.mktemp("run") / "run", settings=QUICK)


def test_training_and_evaluation(tuned: Path, rows: Path) -> None:
    results = json.loads((tuned / "eval_results.json").read_text("utf-8"))
    assert results["accuracy"] > 0.9
    evaluation = evaluate(tuned, Source("stars", rows))
    assert evaluation.metrics["accuracy"] > 0.9
    assert set(evaluation.metrics) == {"accuracy", "mse"}
    assert "fine-tuned to stars" in (tuned / "model" / "README.md").read_text("utf-8")


def test_folder_records_a_kind_that_its_head_does_not_imply(tuned: Path) -> None:
    config = json.loads((tuned / "model" / "config.json").read_text("utf-8"))
    assert config["cloze_task"] == {"kind": "stars"}
    assert "problem_type" not in config
    assert load_folder(tuned / "model").task == TaskLabels("stars", ("1", "2", "3", "4"))


def test_unknown_kind_of_a_folder_is_refused(tuned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    load(tuned).save(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"cloze_task": {"kind": "tag"}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="kind is 'tag', which is not a kind of task with a 'sequence' head"):
        load_folder(folder)


def test_prediction_service_and_command_line_agree(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["the film it was awful", "we saw it and great"]
    expected = [{"stars": 1}, {"stars": 4}]
    assert load(tuned).predict_rows(texts) == expected
    with running(ServiceSettings({"rater": str(tuned)})) as service:
        assert service.post("/classify", {"texts": texts}).json()["results"] == expected
        assert service.get("/info").json()["models"][0]["task"] == "stars"
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["classify", *texts, "--model", str(tuned), "--json"])
    assert end.value.code == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["stars"] for row in printed] == [1, 4]


def test_settings_that_the_kind_does_not_have_are_refused(base: Path, rows: Path, tmp_path: Path) -> None:
    settings = FinetuneSettings(calibrate=True)
    with pytest.raises(ConfigError, match="calibrate applies only to classification; the task here is stars"):
        run_finetuning(Source("stars", rows), base, tmp_path / "run", settings=settings)


def test_registration_ends_with_its_block_and_names_are_unique() -> None:
    with pytest.raises(ConfigError, match="a task named 'stars' already exists"), registered(STARS):
        pass
    del KINDS["stars"]
    try:
        with pytest.raises(ConfigError, match="unknown task 'stars'"):
            find_task("stars")
    finally:
        KINDS["stars"] = STARS
