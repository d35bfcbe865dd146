# ruff: noqa: N803, N806 (X is the name that scikit-learn uses)
"""The estimators in scikit-learn's own tools."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from cloze.checkpoint import ModelFolder, save_folder
from cloze.errors import ConfigError, DataError
from cloze.model import Bert, BertConfig
from cloze.sklearn import TextClassifier, TextEmbedder, TextRegressor
from cloze.text import Tokenizer, learn_pieces
from tests.corpus.texts import WORDS
from tests.train.finetuning.test_finetune import make_rows

ROWS = make_rows(40)
TEXTS = [row["text"] for row in ROWS]
LABELS = [row["label"] for row in ROWS]
FAST: dict[str, Any] = {"epochs": 2, "batch_size": 8, "max_length": 16, "learning_rate": 3e-3}
# Checks that require higher scores than a tiny model reaches if it sees numbers as words.
_WORDS = "numbers are read as words by a tiny model, which learns too little in one epoch for the score asked for"
EXPECTED_FAILURES = {"check_classifiers_train": _WORDS, "check_regressors_train": _WORDS}


class _NumbersAsTexts:
    """Adapter that lets scikit-learn check a text estimator with numeric tables: each row becomes a text of digits."""

    def fit(self, X: Any, y: Any = None) -> Any:
        if y is None and not isinstance(self, TextEmbedder):
            raise ValueError("requires y to be passed, but the target y is None")
        X = validate_data(self, X) if y is None else validate_data(self, X, y, multi_output=True)[0]
        return super().fit(_digits(X), y)  # type: ignore[misc]

    def predict(self, X: Any) -> Any:
        return super().predict(self._read(X))  # type: ignore[misc]

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._read(X))  # type: ignore[misc]

    def transform(self, X: Any) -> Any:
        return super().transform(X if isinstance(X, list) and X == ["a"] else self._read(X))  # type: ignore[misc]

    def _read(self, X: Any) -> list[str]:
        check_is_fitted(self)
        return _digits(validate_data(self, X, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.one_d_array, tags.input_tags.two_d_array, tags.input_tags.string = False, True, False
        return tags


def _digits(table: Any) -> list[str]:
    return [" ".join(WORDS[abs(int(value * 10)) % len(WORDS)] for value in row) for row in table]


class NumberClassifier(_NumbersAsTexts, TextClassifier):
    transform = property()


class NumberRegressor(_NumbersAsTexts, TextRegressor):
    transform = predict_proba = property()


class NumberEmbedder(_NumbersAsTexts, TextEmbedder):
    predict = predict_proba = property()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "model"
    tokenizer = Tokenizer.from_vocabulary(learn_pieces(TEXTS, 120), lowercase=True)
    config = BertConfig(vocab_size=tokenizer.size, hidden_size=16, layers=2, heads=2, feedforward_size=32, positions=32)
    save_folder(ModelFolder(Bert.fresh(config, ("mlm", "nsp"), seed=1), tokenizer), folder)
    return str(folder)


@pytest.fixture(scope="module")
def fitted(model: str) -> TextClassifier:
    return TextClassifier(model, **FAST).fit(TEXTS, LABELS)


def test_classifier_predicts_labels_and_probabilities(fitted: TextClassifier) -> None:
    predicted, probabilities = fitted.predict(TEXTS), fitted.predict_proba(np.array(TEXTS))
    assert fitted.classes_.tolist() == ["garden", "winter"]
    assert probabilities.shape == (len(TEXTS), 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (fitted.classes_[probabilities.argmax(1)] == predicted).all()
    assert fitted.score(pd.Series(TEXTS), LABELS) == np.mean(predicted == np.array(LABELS))
    assert fitted.predict(pd.DataFrame({"text": TEXTS})).tolist() == predicted.tolist()
    assert fitted.history_


def test_labels_may_be_numbers(model: str) -> None:
    numbers = np.array([7 if label == "winter" else -1 for label in LABELS])
    found = TextClassifier(model, **FAST).fit(TEXTS, numbers)
    assert found.predict(TEXTS).dtype == numbers.dtype
    assert set(found.predict(TEXTS)) <= {7, -1}
    assert found.classes_.tolist() == [-1, 7]


def test_pickled_estimator_predicts_the_same(fitted: TextClassifier) -> None:
    written = pickle.dumps(fitted)
    assert b"torch" not in written
    again = pickle.loads(written)
    assert (again.predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()


def test_fit_is_reproducible_and_leaves_nothing_behind(
    model: str, fitted: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    again = clone(fitted).fit(TEXTS, LABELS)
    assert again.folder_["model.safetensors"] == fitted.folder_["model.safetensors"]
    again.predict(TEXTS[:1])
    assert not list(tmp_path.iterdir())


def test_model_selection(model: str) -> None:
    scores = cross_val_score(TextClassifier(model, **FAST), TEXTS, LABELS, cv=2)
    assert scores.shape == (2,)
    search = GridSearchCV(TextClassifier(model, **FAST), {"learning_rate": np.array([1e-3, 3e-3])}, cv=2)
    search.fit(pd.Series(TEXTS), pd.Series(LABELS))
    assert set(search.best_params_) == {"learning_rate"}
    assert len(search.predict(TEXTS)) == len(TEXTS)


def test_linear_head_of_few_labels(model: str) -> None:
    found = TextClassifier(model, max_length=16, few=True).fit(TEXTS, LABELS)
    assert found.history_ == [], "there are no training steps"
    assert found.score(TEXTS, LABELS) > 0.9
    assert TextClassifier(model).few is False, "each fit of a cross-validation would compare both methods"


def test_regressor_learns_the_scale(model: str) -> None:
    numbers = [1000.0 if label == "winter" else 1200.0 for label in LABELS]
    found = TextRegressor(model, **FAST).fit(TEXTS, numbers)
    assert 900 < found.predict(TEXTS).mean() < 1300
    assert np.isfinite(found.score(TEXTS, numbers))
    assert (pickle.loads(pickle.dumps(found)).predict(TEXTS) == found.predict(TEXTS)).all()


def test_embedder_feeds_a_pipeline(model: str) -> None:
    pipeline = make_pipeline(TextEmbedder(model, pooling="mean"), LogisticRegression(max_iter=500))
    assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) > 0.5
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(TEXTS) == pipeline.predict(TEXTS)).all()
    assert len(pipeline[0].get_feature_names_out()) == 16
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).shape == (2,)


@pytest.mark.parametrize("kind", [NumberEmbedder, NumberClassifier, NumberRegressor])
def test_estimator_checks(kind: type[Any], model: str) -> None:
    settings = {} if kind is NumberEmbedder else {"epochs": 1, "batch_size": 64, "max_length": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            kind(model, **settings), expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None
        )
    assert [(result["check_name"], result["exception"]) for result in results if result["status"] == "failed"] == []
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", None], [0, 1], "X row 2: None is not a text"),
        (np.zeros((2, 1)), [0, 1], "X row 1: 0.0 is not a text"),
        (np.zeros((2, 3)), [0, 1], "X has 3 columns; expected a list of texts, or one column of them"),
        ([], [], "X has no texts; expected at least one"),
        (["a", "b"], [0], "y has the shape (1,), but X has 2 texts; expected one target per text"),
        (["a", "b"], [0.0, np.nan], "y row 2: nan is not a target"),
        (["a", "b"], ["x", "x"], "y has one class, "),
    ],
)
def test_bad_input_is_refused(model: str, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        TextClassifier(model).fit(texts, labels)
    assert str(caught.value).startswith(message)


def test_bad_parameters_and_missing_fit_are_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="epochs is 'x'; expected a whole number or None"):
        TextClassifier(model, epochs="x").fit(TEXTS, LABELS)  # type: ignore[arg-type]
    for estimator in (TextClassifier(model), TextRegressor(model)):
        with pytest.raises(NotFittedError):
            estimator.predict(TEXTS)
    with pytest.raises(NotFittedError):
        TextEmbedder(model).transform(TEXTS)
