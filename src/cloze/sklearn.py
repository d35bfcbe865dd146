"""Estimators for scikit-learn: ``TextClassifier``, ``TextRegressor`` and ``TextEmbedder``.

They accept a list, an array or a series of texts, and work in ``Pipeline``, ``GridSearchCV`` and ``cross_val_score``. A
fitted estimator holds its model folder as bytes (the weights as safetensors), so that it can be pickled and leaves no
files behind.
"""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cloze.errors import DataError
from cloze.models import SENTENCE_MODEL
from cloze.predict import Model, load
from cloze.tasks.classification.kind import CLASSIFY, REGRESS
from cloze.tasks.in_memory import texts_of
from cloze.train.finetuning.python_api import finetune

# Number of training rows that are also the dev rows: a run needs dev rows, but an estimator does not use their scores.
_SCORED = 32
_CACHE = "_loaded"


class InputError(DataError, ValueError):
    """Raised for unusable texts or targets; also a ``ValueError``, which scikit-learn expects.

    Example:
        >>> try:
        ...     TextClassifier().fit([None], ["a"])
        ... except InputError as error:
        ...     print(error)
    """


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Fine-tunes a model on texts and targets; the subclasses define the task."""

    def __init__(
        self,
        model: str = SENTENCE_MODEL,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_length: int | None = None,
        pooling: str | None = None,
        few: bool | None = False,
        random_state: int = 0,
        device: str | None = None,
        progress: bool = False,
    ) -> None:
        """Set the parameters; nothing is loaded before ``fit``.

        Args:
            model: A model folder, a run or a model name.
            epochs: Passes over the training rows; chosen by the number of rows if None.
            batch_size: Rows per optimizer step; chosen by the number of rows if None.
            learning_rate: Peak learning rate; chosen by the size of the model if None.
            max_length: Maximum sequence length in tokens; chosen by the texts if None.
            pooling: Input of the head: ``cls``, ``mean`` or ``separate``; by default, the model's.
            few: True fits only a linear head on sentence vectors, which takes seconds. None compares this with
                fine-tuning below 500 rows in every ``fit``, which makes cross-validation slower.
            random_state: Random seed.
            device: Where to compute; by default an accelerator if there is one.
            progress: Whether to print progress.
        """
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.pooling = pooling
        self.few = few
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _fit(self, task: str, texts: list[str], labels: list[Any]) -> Self:
        with finetune(
            task,
            (texts, labels),
            (texts[:_SCORED], labels[:_SCORED]),
            model=self.model,
            device=self.device,
            progress=self.progress,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            max_length=self.max_length,
            pooling=self.pooling,
            few=self.few,
            seed=self.random_state,
            baseline=False,
        ) as run:
            self.folder_ = _read_folder(run / "model")
            self.history_ = run.history
        self.__dict__[_CACHE] = _load_folder(self.folder_, self.device)
        return self

    @property
    def model_(self) -> Model:
        """The fine-tuned model, with all methods of ``cloze.Model``."""
        check_is_fitted(self, "folder_")
        if _CACHE not in self.__dict__:
            self.__dict__[_CACHE] = _load_folder(self.folder_, self.device)
        loaded: Model = self.__dict__[_CACHE]
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != _CACHE}

    def __sklearn_tags__(self) -> Any:
        return _take_texts(super().__sklearn_tags__())


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A text classifier that fine-tunes a BERT model.

    Attributes:
        classes_: The labels, sorted.
        model_: The fine-tuned ``cloze.Model``.
        history_: The metrics of the training.

    Example:
        >>> from cloze.sklearn import TextClassifier
        >>> texts, labels = ["good film", "bad film"] * 20, ["pos", "neg"] * 20
        >>> classifier = TextClassifier("cloze-mini", epochs=2).fit(texts, labels)
        >>> classifier.predict(["a good film"])
    """

    def fit(self, X: Any, y: Any) -> "TextClassifier":  # noqa: N803 (scikit-learn's name)
        """Fine-tune the model.

        Args:
            X: The texts: a list, an array or a series.
            y: One label per text.

        Returns:
            The fitted classifier.

        Raises:
            InputError: If texts or labels cannot be used, or all labels are equal.
        """
        texts = _read_texts(X)
        labels = _read_targets(y, len(texts))
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class, {self.classes_[0]!r}; a classifier needs at least two classes")
        names = {label: name for name, label in self._names().items()}
        return self._fit(CLASSIFY.name, texts, [names[label] for label in labels.tolist()])

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most likely label of each text.

        Args:
            X: The texts.

        Returns:
            The labels, (texts,).
        """
        names, results = self._names(), self.model_.classify(_read_texts(X), abstain=False)
        return np.array([names[result.label or ""] for result in results], dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class.

        Args:
            X: The texts.

        Returns:
            The probabilities, (texts, classes), in the order of ``classes_``.
        """
        results = self.model_.classify(_read_texts(X))
        return np.array([[result.probabilities[name] for name in self._names()] for result in results])

    def _names(self) -> dict[str, Any]:
        """Return label name -> class; if two classes have the same name, their numbers are used as names."""
        check_is_fitted(self, "classes_")
        classes = self.classes_.tolist()
        names = [str(label).strip() for label in classes]
        usable = len(set(names)) == len(names) and all(names)
        return dict(zip(names if usable else map(str, range(len(classes))), classes, strict=True))


class TextRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A text regressor that fine-tunes a BERT model.

    Attributes:
        model_: The fine-tuned ``cloze.Model``; its outputs are standardized, those of ``predict`` are not.
        history_: The metrics of the training.

    Example:
        >>> from cloze.sklearn import TextRegressor
        >>> texts, stars = ["good film", "bad film"] * 20, [5.0, 1.0] * 20
        >>> TextRegressor("cloze-mini", epochs=2).fit(texts, stars).predict(["a good film"])
    """

    def fit(self, X: Any, y: Any) -> "TextRegressor":  # noqa: N803
        """Fine-tune the model.

        Args:
            X: The texts: a list, an array or a series.
            y: One number per text.

        Returns:
            The fitted regressor.

        Raises:
            InputError: If texts or numbers cannot be used.
        """
        texts = _read_texts(X)
        values = _read_targets(y, len(texts)).astype(np.float64)
        # The head starts with outputs around zero, so targets are standardized; else training would take longer.
        self.mean_, self.scale_ = float(values.mean()), float(values.std()) or 1.0
        return self._fit(REGRESS.name, texts, ((values - self.mean_) / self.scale_).tolist())

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the predicted number of each text.

        Args:
            X: The texts.

        Returns:
            The numbers, (texts,).
        """
        return self.model_.regress(_read_texts(X)).astype(np.float64) * self.scale_ + self.mean_


class TextEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Converts texts to vectors, for any estimator that follows in a pipeline.

    Attributes:
        n_features_out_: The size of the vectors.

    Example:
        >>> from cloze.sklearn import TextEmbedder
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> texts, labels = ["good film", "bad film"] * 20, ["pos", "neg"] * 20
        >>> make_pipeline(TextEmbedder("cloze-mini"), LogisticRegression()).fit(texts, labels)
    """

    def __init__(self, model: str = SENTENCE_MODEL, *, pooling: str | None = None, device: str | None = None) -> None:
        """Set the parameters; the model is loaded by ``fit``.

        Args:
            model: A model folder, a run or a model name.
            pooling: ``cls``, ``mean``, ``max``, ``mean_max``, ``mean_words`` or ``pooler``; by default, the model's.
            device: Where to compute; by default an accelerator if there is one.
        """
        self.model = model
        self.pooling = pooling
        self.device = device

    def fit(self, X: Any, y: Any = None) -> "TextEmbedder":  # noqa: ARG002, N803
        """Load the model; nothing is learned from the texts.

        Args:
            X: The texts, which are only checked.
            y: Ignored.

        Returns:
            The embedder itself.
        """
        _read_texts(X)
        self.__dict__[_CACHE] = load(self.model, device=self.device)
        self.n_features_out_ = self.transform(["a"]).shape[1]
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return one vector per text.

        Args:
            X: The texts.

        Returns:
            The vectors, (texts, size).
        """
        if _CACHE not in self.__dict__:
            check_is_fitted(self, "n_features_out_")
            self.__dict__[_CACHE] = load(self.model, device=self.device)
        pooling: Any = self.pooling
        vectors: NDArray[np.float32] = self.__dict__[_CACHE].embed(_read_texts(X), pooling=pooling)
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:  # noqa: ARG002
        """Return the names of the vector's components.

        Args:
            input_features: Ignored; present for scikit-learn.

        Returns:
            One name per component.
        """
        check_is_fitted(self, "n_features_out_")
        return np.array([f"vector{number}" for number in range(self.n_features_out_)], dtype=object)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != _CACHE}

    def __sklearn_tags__(self) -> Any:
        tags = _take_texts(super().__sklearn_tags__())
        tags.transformer_tags.preserves_dtype = []  # vectors are float32
        return tags


def _take_texts(tags: Any) -> Any:
    """Set scikit-learn's tags of an estimator whose inputs are texts."""
    tags.input_tags.one_d_array, tags.input_tags.two_d_array, tags.input_tags.string = True, False, True
    return tags


def _read_texts(data: Any) -> list[str]:
    """Return texts as a list; a table with one column is treated as that column."""
    shape: tuple[int, ...] = getattr(data, "shape", ())
    if len(shape) == 2:
        if shape[1] != 1:
            raise InputError(f"X has {shape[1]} columns; expected a list of texts, or one column of them")
        data = np.asarray(data)[:, 0]
    try:
        texts = texts_of(data, "X")
    except DataError as error:
        raise InputError(str(error)) from error
    if not texts:
        raise InputError("X has no texts; expected at least one")
    return texts


def _read_targets(y: Iterable[Any], rows: int) -> NDArray[Any]:
    """Return the targets as an array; refuse missing targets, or more or fewer targets than texts."""
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim != 1 or len(values) != rows:
        raise InputError(f"y has the shape {values.shape}, but X has {rows} texts; expected one target per text")
    for number, value in enumerate(values.tolist(), start=1):
        if value is None or value != value:
            raise InputError(f"y row {number}: {value} is not a target; label the row, or leave it out")
    return values


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _load_folder(files: Mapping[str, bytes], device: str | None) -> Model:
    with tempfile.TemporaryDirectory(prefix="cloze-") as folder:
        for name, contents in files.items():
            path = Path(folder, "model", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        return load(Path(folder, "model"), device=device)
