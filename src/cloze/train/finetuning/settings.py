"""Settings of fine-tuning, contrastive training, hyperparameter search and domain adaptation.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from cloze.errors import ConfigError, did_you_mean, format_option
from cloze.options import LONGEST_ANSWER, AdapterKind, FeatureHead, Features, HeadPooling, LongTexts, check_types
from cloze.tasks.retrieval.kind import RERANK_NAME, RETRIEVAL_NAME
from cloze.train.settings import LoopSettings, PrecisionName, check_precision

Augment = Literal["none", "contextual", "edits"]
SimilarityObjective = Literal["contrastive", "cosent", "cosine", "margin-mse", "listwise", "pairwise", "pointwise"]

# Settings of the training loop and of the layers it trains; a head that is fitted in closed form ignores them.
LOOP_SETTINGS = (
    *("epochs", "batch_size", "learning_rate", "warmup", "weight_decay", "dropout", "patience"),
    *("freeze_layers", "layer_decay"),
)
# Settings of what is trained instead of the whole model, of the head's initial weights, and of the mean teacher.
TRAINABLE_SETTINGS = (
    *("adapter", "adapter_size", "frozen", "feature_head", "linear_start"),
    *("mean_teacher", "teacher_decay"),
)
AUGMENTATION_SETTINGS = ("augment", "augment_copies", "synonyms")

# The shortest possible sequence: [CLS], one token, [SEP].
SHORTEST = 3


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of ``cloze finetune`` and ``cloze.finetune``. ``None``: chosen from model and rows (``defaults.py``).

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range or two settings contradict each other.

    Example:
        >>> settings = cloze.FinetuneSettings(epochs=3, learning_rate=2e-5, patience=1)
        >>> settings.batch_size is None  # chosen later, by the number of rows
        True
    """

    epochs: int | None = None
    """Passes over the training rows; by default 3, and up to 20 with few rows."""
    batch_size: int | None = None
    """Batch size: rows per optimizer step; by default 32, or 16 below 1,000 rows."""
    accumulate: int = 1
    """Gradient-accumulation steps per batch; more steps need less memory and give the same result."""
    max_length: int | None = None
    """Maximum sequence length in tokens; by default the smallest of 128, 256 and 512 that fits 95 % of the rows."""
    long_texts: LongTexts = "cut"
    """For classify, multilabel and regress: truncate long texts (cut), keep both ends (head-tail), or use windows."""
    stride: int = 128
    """For answer: tokens between the starts of two windows of a long context in training; at most half a window."""
    longest_answer: int = LONGEST_ANSWER
    """For answer: maximum answer length in tokens, in evaluation and prediction; increase it for Chinese."""
    context: bool = False
    """For tag: encode each sentence with as many neighbouring sentences of its document as fit."""
    learning_rate: float | None = None
    """Peak learning rate; by default higher for smaller models (4e-4 at hidden size 256), and 1e-3 for adapters."""
    warmup: float | None = None
    """Fraction of the steps over which the learning rate warms up; 0.1 by default."""
    weight_decay: float = 0.01
    """Weight decay of matrices and embeddings; biases and LayerNorm are not decayed."""
    dropout: float | None = None
    """Dropout probability of hidden states and attention; by default, as in the model's configuration."""
    class_weights: Literal["none", "balanced"] = "none"
    """For classify and multilabel: none, or balanced (in the loss, rare labels count as much as frequent ones)."""
    patience: int = 0
    """Early stopping: epochs without a better dev score before training stops; the best weights are kept. 0: off."""
    calibrate: bool = False
    """For classify and multilabel: fit a temperature for the probabilities and a decision threshold on the dev rows."""
    adapter: AdapterKind | None = None
    """Freeze the model and train an adapter: houlsby (two bottlenecks per layer) or lora (low-rank updates)."""
    adapter_size: int | None = None
    """With --adapter: bottleneck size of houlsby (64 by default) or rank of lora (8 by default)."""
    frozen: Features | None = None
    """Freeze the model and train only a head on its states: last layer, last4 concatenated, or a learned mix of all."""
    feature_head: FeatureHead = "linear"
    """With --frozen: the head, linear or lstm (two bidirectional layers)."""
    freeze_layers: int = 0
    """Number of lowest layers to freeze together with the embeddings; 0: train the whole model."""
    layer_decay: float = 1.0
    """Layer-wise learning-rate decay: the learning rate of each layer as a fraction of that of the layer above it."""
    pooling: HeadPooling | None = None
    """Input to the head for texts and choices: cls (pooler), mean, or separate (texts of a pair encoded separately)."""
    linear_start: bool | None = None
    """For classify, multilabel and regress: initialize the head from a linear model (default with separate pooling)."""
    mean_teacher: float = 0.0
    """Weight of the mean-teacher loss, whose targets come from a moving average of the weights; 0: off."""
    teacher_decay: float = 0.999
    """With --mean-teacher: decay of the moving average per step."""
    augment: Augment = "none"
    """For classify, multilabel and regress: augment with contextual (predicted) words or edits (swap, delete, ...)."""
    augment_copies: int = 1
    """With --augment: number of augmented copies per training row."""
    synonyms: str | None = None
    """With --augment edits: a file with a word and its synonyms per line; by default, words with similar embeddings."""
    baseline: bool = True
    """Compare the scores with those of a simple model, such as TF-IDF + logistic regression, on the same rows."""
    few: bool | None = None
    """For classify, multilabel and regress: fit only a linear head on sentence vectors; by default, with fewer than 500
    rows, both this and fine-tuning are tried and the better model is kept."""
    contrastive: bool = False
    """For classify with --few: first train the embeddings on pairs with the same or different labels (SetFit)."""
    precision: PrecisionName = "auto"
    """Training precision: fp32, bf16, or auto (bf16 where it is faster). Weights and dev scores are always float32."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass; a third slower, but uses much less memory."""
    save_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """Random seed for the new head, the order of the rows and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("max_length", SHORTEST),
            ("stride", 1),
            ("longest_answer", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        if self.patience < 0:
            raise ConfigError(f"patience is {self.patience}; expected a number of epochs, or 0")
        check_precision(self.precision)
        if self.batch_size is not None and self.accumulate > self.batch_size:
            raise ConfigError(f"accumulate is {self.accumulate}, more than the {self.batch_size} rows of a batch")
        self._check_trainable()
        self._check_mean_teacher()
        self._check_augmentation()
        if self.contrastive and not self.few:
            raise ConfigError("contrastive trains the vectors that few uses; set few as well, or leave out contrastive")
        # Checks the ranges of the other values, with placeholders for those that are not chosen yet.
        LoopSettings(
            steps=1,
            learning_rate=1e-4 if self.learning_rate is None else self.learning_rate,
            warmup=0.1 if self.warmup is None else self.warmup,
            weight_decay=self.weight_decay,
            accumulate=self.accumulate,
            save_every=self.save_every,
            seed=self.seed,
        )

    def _check_trainable(self) -> None:
        """Refuse values out of range, and combinations in which one setting would be ignored."""
        if self.freeze_layers < 0:
            raise ConfigError(f"freeze_layers is {self.freeze_layers}; expected a number of layers, or 0 for none")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}; expected a fraction above 0 and at most 1")
        if self.adapter_size is not None and self.adapter_size < 1:
            raise ConfigError(f"adapter_size is {self.adapter_size}; expected at least 1")
        if self.adapter_size is not None and self.adapter is None:
            raise ConfigError(
                f"adapter_size is {self.adapter_size}, but no adapter is trained; choose houlsby or lora as adapter"
            )
        if self.feature_head != "linear" and self.frozen is None:
            raise ConfigError(
                f"feature_head is {self.feature_head!r}, which reads frozen states; choose last, last4 or mix as frozen"
            )
        if self.linear_start and self.frozen is not None:
            raise ConfigError(
                "linear_start and frozen exclude each other; to train a linear head on frozen vectors, set few instead"
            )
        if self.precision == "bf16" and self.frozen is not None:
            raise ConfigError("precision is bf16, but frozen states are computed once, in fp32; leave out one of them")
        if self.checkpointing and self.frozen is not None:
            raise ConfigError("checkpointing and frozen exclude each other; frozen states need no backward pass")
        if self.pooling is not None and self.frozen is not None:
            raise ConfigError(
                f"pooling is {self.pooling!r}, but frozen is {self.frozen!r}, whose head pools the states "
                "differently; leave out one of them"
            )
        if self.pooling == "separate" and self.contrastive:
            raise ConfigError(
                "pooling is 'separate', but contrastive trains on pairs of rows, each encoded as one sequence; leave "
                "out one of them"
            )
        chosen = [name for name in ("adapter", "frozen") if getattr(self, name) is not None]
        chosen += ["freeze_layers"] if self.freeze_layers else []
        chosen += ["layer_decay"] if self.layer_decay != 1 else []
        # freeze_layers and layer_decay can be combined; with an adapter or frozen states there is nothing left to
        # freeze.
        if len(chosen) > 1 and chosen[0] in ("adapter", "frozen"):
            raise ConfigError(f"{' and '.join(chosen)} exclude each other; each sets what is trained: choose one")

    def _check_mean_teacher(self) -> None:
        if not 0 <= self.mean_teacher < float("inf"):
            raise ConfigError(f"mean_teacher is {self.mean_teacher}; expected a weight of at least 0")
        if not 0 <= self.teacher_decay < 1:
            raise ConfigError(f"teacher_decay is {self.teacher_decay}; expected a fraction of at least 0 and below 1")
        if self.mean_teacher and self.frozen is not None:
            raise ConfigError("mean_teacher and frozen exclude each other; a frozen model has nothing to average")
        if self.teacher_decay != FinetuneSettings.teacher_decay and not self.mean_teacher:
            raise ConfigError(f"teacher_decay is {self.teacher_decay}, but there is no teacher; set mean_teacher too")

    def _check_augmentation(self) -> None:
        if self.augment_copies < 1:
            raise ConfigError(f"augment_copies is {self.augment_copies}; expected at least 1")
        if self.augment_copies > 1 and self.augment == "none":
            raise ConfigError(
                f"augment_copies is {self.augment_copies}, but augment is none; choose contextual or edits as augment"
            )
        if self.synonyms is not None and self.augment != "edits":
            raise ConfigError(f"synonyms only apply to edits, but augment is {self.augment}")

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Return which of the given settings differ from their defaults."""
        return [name for name in names if getattr(self, name) != getattr(FinetuneSettings, name)]

    @property
    def trains_all(self) -> bool:
        """Whether the model's own weights are trained, rather than only an adapter or a head."""
        return self.adapter is None and self.frozen is None


@dataclass(frozen=True)
class ResolvedSettings(FinetuneSettings):
    """Fine-tuning settings with every value set, as a run records them."""

    epochs: int = 3
    batch_size: int = 32
    max_length: int = 128
    learning_rate: float = 5e-5
    warmup: float = 0.1

    @property
    def summary(self) -> str:
        """The main settings in one line, for the model card."""
        return (
            f"{self.epochs} epochs, batch size {self.batch_size}, learning rate {self.learning_rate:g}, "
            f"seed {self.seed}, computed in {self.precision}"
        )

    def loop(self, steps_per_epoch: int) -> LoopSettings:
        """Return the settings of the loop, with an evaluation after every epoch."""
        return LoopSettings(
            steps=self.epochs * steps_per_epoch,
            learning_rate=self.learning_rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            accumulate=self.accumulate,
            save_every=self.save_every,
            evaluate_every=steps_per_epoch,
            seed=self.seed,
        )


@dataclass(frozen=True)
class SimilaritySettings:
    """Additional settings of training for similarity."""

    objective: SimilarityObjective | None = None
    """For similarity: contrastive, or cosent or cosine for scored pairs; for retrieval: contrastive, or margin-mse for
    scores of a reranker; for rerank: listwise, pairwise or pointwise. By default, the first, or as suits the rows."""
    temperature: float = 0.05
    """For similarity and retrieval: temperature of the softmax over cosines; lower ones weight hard negatives more."""
    vectors: str | None = None
    """For similarity and retrieval: the pooling to train with, such as mean, cls or pooler; by default, the model's."""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.temperature > 0:
            raise ConfigError(f"temperature is {self.temperature}; expected a number above 0, such as 0.05")
        known = get_args(SimilarityObjective)
        if self.objective is not None and self.objective not in known:
            raise ConfigError(f"unknown objective {self.objective!r}{did_you_mean(self.objective, known)}")


# The objectives of each task; the first one is the default of retrieval and rerank. Similarity chooses by its rows.
OBJECTIVES: Mapping[str, tuple[str, ...]] = {
    "similarity": ("contrastive", "cosent", "cosine"),
    RETRIEVAL_NAME: ("contrastive", "margin-mse"),
    RERANK_NAME: ("listwise", "pairwise", "pointwise"),
}


@dataclass(frozen=True)
class RankingSettings(SimilaritySettings):
    """Additional settings of training for similarity, retrieval and reranking."""

    negatives: int | None = None
    """For retrieval and rerank: number of the row's negatives per step, drawn anew in every epoch; by default 1 for
    retrieval, which also uses the passages of other rows, and 4 for rerank."""
    symmetric: bool = False
    """For retrieval: each passage must also identify its query."""
    dimensions: str | None = None
    """For retrieval: also train the first values of the vectors, such as 256,128,64; embed --dimensions cuts to these
    sizes."""
    query_prompt: str | None = None
    """For retrieval: a prefix for queries, such as 'query: ', which is saved with the model; by default, the model's
    own."""
    document_prompt: str | None = None
    """For retrieval: a prefix for passages, such as 'passage: '."""
    chunk_tokens: int | None = None
    """For retrieval: tokens that are encoded at once; a larger batch costs time (gradient caching), but no memory. By
    default, as many as take about 2 GB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("negatives", 0), ("chunk_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        _ = self.sizes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of ``dimensions``, largest first."""
        words = [] if self.dimensions is None else self.dimensions.split(",")
        if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
            raise ConfigError(f"dimensions is {self.dimensions!r}; expected numbers separated by commas, as in 256,128")
        return tuple(sorted({int(word) for word in words}, reverse=True))


# The settings that each task has.
SETTINGS_OF: Mapping[str, tuple[str, ...]] = {
    "similarity": tuple(field.name for field in fields(SimilaritySettings)),
    RETRIEVAL_NAME: tuple(field.name for field in fields(RankingSettings)),
    RERANK_NAME: ("objective", "negatives"),
}


def check_ranking_settings(task: str, settings: SimilaritySettings) -> None:
    """Refuse settings of training for similarity, retrieval or rerank that the task would ignore."""
    name = task.lower()
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name not in SETTINGS_OF.get(name, ()):
            tasks = " and ".join(one for one, names in SETTINGS_OF.items() if field.name in names)
            raise ConfigError(f"{field.name} is {value!r}, which only applies to {tasks}; leave it out")
    known = OBJECTIVES.get(name, ())
    if settings.objective is not None and settings.objective not in known:
        raise ConfigError(
            f"{format_option('objective')} is {settings.objective!r}, which is not one of {name}"
            f"{did_you_mean(settings.objective, known)}"
        )


@dataclass(frozen=True)
class SearchSettings:
    """Settings of ``cloze.search``: several fine-tuning runs over a grid, seeds or folds.

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range, or folds are combined with a grid or seeds.

    Example:
        >>> cloze.SearchSettings(seeds=3).several
        True
    """

    grid: bool = False
    """Grid search over 18 settings (batch sizes 16 and 32; three learning rates; three numbers of epochs)."""
    seeds: int = 1
    """Number of runs with different seeds; keeps the best model and reports the mean with its 95 % interval."""
    folds: int = 0
    """Number of cross-validation folds, for data without a dev set; 0: off."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; expected at least 1")
        if self.folds == 1 or self.folds < 0:
            raise ConfigError(f"folds is {self.folds}; expected at least 2")
        if self.folds and (self.grid or self.seeds > 1):
            raise ConfigError(
                f"folds cannot be combined with a grid or seeds, which need a dev set: use {format_option('dev')}, or "
                f"leave them out"
            )

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return self.grid or self.seeds > 1 or self.folds > 0
