"""Label errors against cleanlab, flipped labels, both methods; suggestions; and their commands."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cleanlab.filter import find_label_issues
from sklearn.linear_model import LogisticRegression

import cloze
from cloze.checkpoint import TaskLabels
from cloze.errors import ConfigError, RequestError
from cloze.predict import Model
from cloze.progress import Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import fold_indices
from cloze.tasks.reports import read_predictions
from cloze.train.finetuning.few_labels import standardize
from cloze.train.finetuning.label_quality import confident_errors, draw_diverse, linear_probabilities, suggest
from tests.cli.conftest import Cloze, quiet_neighbours, run
from tests.model.made import model_folder, saved

__all__ = ["quiet_neighbours", "run"]  # fixtures

WORDS = ["cat", "dog", "mat", "sat", "ran", "on", "a", "the"]


@pytest.mark.parametrize("labels", [2, 3, 6])
def test_errors_equal_those_of_cleanlab(labels: int) -> None:
    draw = np.random.default_rng(labels)
    given = draw.integers(0, labels, 400)
    shares = draw.dirichlet(np.ones(labels), 400)
    shares[np.arange(400), given] += draw.random(400) * 0.5
    shares /= shares.sum(1, keepdims=True)
    theirs = find_label_issues(given, shares, filter_by="confident_learning", n_jobs=1)
    ours = confident_errors(given, shares)
    assert ours.sum() > 10
    np.testing.assert_array_equal(ours, theirs)


def made_rows(count: int, seed: int = 0) -> LabelledTexts:
    draw = np.random.default_rng(seed)
    targets = [int(target) for target in draw.integers(0, 3, count)]
    texts = [" ".join(draw.choice(WORDS, 4)) for _ in targets]
    return LabelledTexts(texts, None, targets, [f"rows.csv:{row + 2}" for row in range(count)])


def test_out_of_fold_probabilities_equal_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.train.finetuning.label_quality.STRENGTHS", (0.1,))
    rows = made_rows(90)
    vectors = np.random.default_rng(1).normal(size=(90, 5)) + np.eye(3)[np.array(rows.targets)] @ np.ones((3, 5))
    shares = linear_probabilities(vectors, rows, 3, 3, Silent())
    scaled, _ = standardize(vectors)
    for fold in range(3):
        held_out = fold_indices(rows, fold, 3)
        others = np.setdiff1d(np.arange(90), held_out)
        fitted = LogisticRegression(C=0.1, tol=1e-8, max_iter=1000).fit(scaled[others], np.array(rows.targets)[others])
        np.testing.assert_allclose(shares[held_out], fitted.predict_proba(scaled[held_out]), atol=1e-4)


def table_with_errors() -> tuple[dict[str, list[str]], set[int]]:
    """Return 120 rows whose label is an animal in the text, and the rows whose label is wrong."""
    draw = np.random.default_rng(0)
    labels = ["cat" if row % 2 else "dog" for row in range(120)]
    texts = [f"the {label} {draw.choice(['sat', 'ran'])} on a mat" for label in labels]
    wrong = {3, 40, 77, 100}
    given = ["dog" if (label == "cat") != (row in wrong) else "cat" for row, label in enumerate(labels)]
    return {"text": texts, "label": given}, wrong


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("encoder") / "model")


def test_flipped_labels_are_found(encoder: Path) -> None:
    rows, wrong = table_with_errors()
    found = cloze.find_label_errors("classify", rows, model=encoder, folds=4)
    places = [f"row {row + 1}" for row in wrong]
    assert len(found.rows) == 120
    assert all(any(place in row.row for place in places) for row in found.rows[:4])
    assert {(row.label, row.suggested) for row in found.issues[:4]} <= {("dog", "cat"), ("cat", "dog")}
    assert len(found.issues) >= 4
    assert found.accuracy == pytest.approx(116 / 120)
    assert "labels are probably wrong; out-of-fold accuracy 0.9667 (4 folds, logistic" in str(found)
    given = [row.given_probability for row in found.rows]
    assert given == sorted(given)


def test_pairs_and_fine_tuning(encoder: Path) -> None:
    rows, _ = table_with_errors()
    paired = {name: values[:24] for name, values in rows.items()} | {"pair": ["a dog ran"] * 24}
    common: dict[str, Any] = {"model": encoder, "pair": "pair", "folds": 2}
    linear = cloze.find_label_errors("classify", paired, **common)
    assert all(row.texts[1] == "a dog ran" for row in linear.rows)
    settings = cloze.FinetuneSettings(epochs=1, few=False, baseline=False, batch_size=8)
    tuned = cloze.find_label_errors("classify", paired, method="finetune", settings=settings, **common)
    assert len(tuned.rows) == 24
    assert all(row.probability >= row.given_probability for row in tuned.rows)
    assert {row.probability for row in tuned.rows} != {row.probability for row in linear.rows}


def test_mistakes(encoder: Path) -> None:
    rows, _ = table_with_errors()
    with pytest.raises(ConfigError, match=r"folds is 1; expected 2 to 120, the number of rows"):
        cloze.find_label_errors("classify", rows, model=encoder, folds=1)
    numbers = {"text": ["a", "b"], "label": [1.5, 2]}
    with pytest.raises(ConfigError, match=r"need rows with one label per text; the task here is regress"):
        cloze.find_label_errors("regress", numbers, model=encoder)
    with pytest.raises(ConfigError, match=r"model is a loaded model, but finetune starts from a folder; give its path"):
        cloze.find_label_errors("classify", rows, model=cloze.load(encoder), method="finetune")


def test_fine_tuned_model_is_noted(tmp_path: Path) -> None:
    class Notes(Silent):
        said: list[str] = []  # noqa: RUF012

        def say(self, message: str) -> None:
            self.said.append(message)

    tuned = saved(model_folder(["sequence"], task=TaskLabels("classify", ("a", "b"))), tmp_path / "model")
    cloze.find_label_errors("classify", table_with_errors()[0], model=tuned, folds=2, progress=Notes())
    assert Notes.said == [
        "the model is fine-tuned to classify; if it has seen these rows, its vectors repeat their labels: use the "
        "model that it was started from"
    ]


def test_command_of_label_errors(run: Cloze, encoder: Path, tmp_path: Path) -> None:
    rows, _ = table_with_errors()
    table = tmp_path / "rows.csv"
    lines = [",".join(cells) for cells in zip(rows["text"], rows["label"], strict=True)]
    table.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    common = ("evaluate", "classify", table, "--model", encoder, "--label-errors", "--folds", 4)
    result = run(*common, "--out", tmp_path / "errors")
    assert result.code == 0
    shown = result.out.splitlines()
    assert shown[0] == "row\tgiven\tsuggested\tprobability\ttext"
    assert {line.split("\t")[0] for line in shown[1:5]} == {f"{table}:{row + 2}" for row in (3, 40, 77, 100)}
    assert shown[-1] == f"{tmp_path / 'errors'}: label_errors.tsv, label_errors.html"
    written = read_predictions(tmp_path / "errors" / "label_errors.tsv")
    assert len(written) == 120
    assert list(written[0]) == ["row", "text", "label", "suggested", "probability", "given_probability", "issue"]
    assert written[0]["issue"] == "true"
    assert "the cat sat on a mat" in (tmp_path / "errors" / "label_errors.html").read_text(encoding="utf-8")
    found = json.loads(run(*common, "--json").out)
    assert [row["row"] for row in found["rows"][:4]] == [row["row"] for row in written[:4]]
    refused = run("evaluate", "classify", table, "--model", encoder, "--folds", 4)
    assert refused.complaint == "--folds is 4, which only applies to --label-errors; leave it out"


# -- suggestions -------------------------------------------------------------------------------------------------------


def test_draw_prefers_uncertain_and_distant_rows() -> None:
    draw = np.random.default_rng(0)
    groups = np.repeat(np.eye(4), 25, 0) + 0.01 * draw.normal(size=(100, 4))
    chosen = [draw_diverse(groups.astype(np.float32), np.ones(100), 4, seed) for seed in range(50)]
    assert all(len({row // 25 for row in rows}) == 4 for rows in chosen)  # one of each group
    weights = np.zeros(100)
    weights[[10, 60, 90]] = 1
    assert sorted(draw_diverse(groups.astype(np.float32), weights, 50, 0)) == [10, 60, 90]
    same = np.ones((5, 3), np.float32)
    assert len(draw_diverse(same, np.ones(5), 3, 0)) == 1  # equal rows are drawn once
    assert draw_diverse(same[:0], np.ones(0), 3, 0) == []


@pytest.mark.parametrize(
    ("head", "task", "labels"),
    [
        ("sequence", TaskLabels("classify", ("a", "b", "c"), abstain_below=0.99), 3),
        ("sequence", TaskLabels("multilabel", ("a", "b")), 2),
        ("token", TaskLabels("tag", ("O", "B-X", "I-X")), 3),
    ],
)
def test_suggestions_of_each_kind(head: str, task: TaskLabels, labels: int) -> None:
    model = Model(model_folder([head], task=task, labels=labels))  # type: ignore[list-item]
    texts = list(dict.fromkeys(made_rows(40).texts))
    found = suggest([*texts, texts[0]], model=model, count=10)
    assert len(found) == len({one.text for one in found}) == 10
    assert all(0 <= one.uncertainty <= 1 and one.text == [*texts, texts[0]][one.row] for one in found)
    assert found == suggest([*texts, texts[0]], model=model, count=10)
    if task.kind == "classify":
        label = model.classify([found[0].text], abstain=False)[0]
        best, second = sorted(label.probabilities.values(), reverse=True)[:2]
        assert found[0].uncertainty == pytest.approx(1 - (best - second), abs=1e-5)
        assert found[0].prediction == label.label


def test_mistakes_of_suggestions() -> None:
    with pytest.raises(ConfigError, match=r"count.*expected at least 1"):
        suggest(["a"], model=Model(model_folder(["mlm"])), count=0)
    with pytest.raises(RequestError, match=r"predicts labels or tags of texts; this one is not fine-tuned"):
        suggest(["a"], model=Model(model_folder(["mlm"])))
    number = Model(model_folder(["sequence"], task=TaskLabels("regress"), labels=1))
    with pytest.raises(RequestError, match=r"predicts labels or tags of texts; this one is fine-tuned to regress"):
        suggest(["a"], model=number)


def test_command_of_suggestions(run: Cloze, tmp_path: Path) -> None:
    task = replace(TaskLabels("classify", ("a", "b")), temperature=2.0)
    folder = saved(model_folder(["sequence"], task=task), tmp_path / "model")
    table = tmp_path / "rows.csv"
    texts = list(dict.fromkeys(made_rows(30).texts))
    table.write_text("id,body\n" + "".join(f"{row},{text}\n" for row, text in enumerate(texts)), encoding="utf-8")
    common = ("suggest", table, "--model", folder, "--text", "body", "--count", 5)
    result = run(*common)
    assert result.code == 0
    assert result.out.splitlines()[0] == "uncertainty\tprediction\ttext"
    assert len(result.out.splitlines()) == 6
    rows = [json.loads(line) for line in run(*common, "--json").out.splitlines()]
    assert all(texts[int(row["id"])] == row["body"] for row in rows)
    assert list(rows[0]) == ["id", "body", "prediction", "uncertainty"]
    output = tmp_path / "next.csv"
    assert run(*common, "--output", output).code == 0
    assert output.read_text(encoding="utf-8").splitlines()[0] == "id,body,prediction,uncertainty"
    assert len(output.read_text(encoding="utf-8").splitlines()) == 6
