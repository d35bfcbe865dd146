"""Settings of ``cloze distill`` and of ``cloze adapt``, which trains on the text of a domain before fine-tuning.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from cloze.corpus.settings import Masking
from cloze.errors import ConfigError, did_you_mean
from cloze.options import LongTexts, check_types
from cloze.options import PrecisionName as InferencePrecision
from cloze.train.finetuning.settings import SHORTEST, FinetuneSettings, ResolvedSettings, SearchSettings
from cloze.train.settings import LoopSettings, PrecisionName, PretrainSettings

Take = Literal["first", "alternate"]
WEIGHTS = ("labels_weight", "logits_weight", "states_weight", "attention_weight")

# Defaults of distillation on raw text: the maximum length of a text in tokens, and the learning rate. The rate was
# measured for students of hidden size 256 and 384; wider ones get a lower one.
TEXT_LENGTH = 128
TEXT_RATE, TEXT_RATE_ABOVE, WIDE = 1e-3, 5e-4, 384
# What the student reproduces in distillation on raw text, and the settings that only one of these objectives has.
TextObjective = Literal["vectors", "relations", "hidden"]
_TEXT_OBJECTIVE_SETTINGS = {
    "vectors": ("distance", "match_width", "cache", "teacher_precision"),
    "relations": ("teacher_layer", "relation_heads"),
}


@dataclass(frozen=True)
class DistillSettings:
    """Settings of ``cloze distill`` and ``cloze.distill``: the student, the weights of the losses, and the training.

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range or two settings contradict each other.

    Example:
        >>> settings = cloze.DistillSettings(layers=2, epochs=3)
        >>> settings.temperature
        2.0
    """

    layers: int | None = None
    """Number of layers of the student, which are initialized from the teacher; by default, half of its layers."""
    take: Take | None = None
    """The teacher's layers that initialize the student: the first ones, or alternate ones (the default)."""
    preset: str | None = None
    """Size of a new, randomly initialized student instead: tiny, mini, small, medium, base or large."""
    student: str | None = None
    """Another model as the student instead, with the same vocabulary: a folder, a run or a hub name."""
    labels_weight: float = 0.5
    """Weight of the loss on the labels of the rows."""
    logits_weight: float = 1.0
    """Weight of the loss on the teacher's logits."""
    states_weight: float = 1.0
    """Weight of the loss on the hidden states of the teacher's layers."""
    attention_weight: float = 1.0
    """Weight of the loss on the teacher's attention; not used if the student has a different number of heads."""
    temperature: float = 2.0
    """Temperature of the teacher's and the student's logits; higher values give more weight to unlikely labels."""
    epochs: int = 6
    """Passes over the training rows."""
    batch_size: int = 32
    """Batch size: rows per optimizer step."""
    accumulate: int = 1
    """Gradient-accumulation steps per batch; more steps need less memory and give the same result."""
    stride: int = 128
    """For answer: tokens between the starts of two windows of a long context; at most half a window."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate warms up."""
    weight_decay: float = 0.01
    """Weight decay of matrices and embeddings; biases and LayerNorm are not decayed."""
    dropout: float = 0.0
    """Dropout probability of hidden states and attention; 0 by default, because the student imitates the teacher."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute the student's activations in the backward pass to save memory."""
    save_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """Random seed for new weights, the order of the rows and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        chosen = [name for name in ("layers", "preset", "student") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)} exclude each other; each defines the student: choose one")
        if self.take is not None and chosen in (["preset"], ["student"]):
            raise ConfigError(
                f"take is {self.take!r}, but a {chosen[0]} takes no layers of the teacher; leave out one of them"
            )
        if self.layers is not None and self.layers < 1:
            raise ConfigError(f"layers is {self.layers}; expected at least 1")
        for name in WEIGHTS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number of at least 0")
        if not self.labels_weight and not self.logits_weight:
            raise ConfigError("labels_weight and logits_weight are both 0, so the student's head would not be trained")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; expected a number above 0")
        self.training(SHORTEST, "cut", context=False)

    def training(self, length: int, long_texts: LongTexts, *, context: bool) -> ResolvedSettings:
        """Return the settings of the training; texts are encoded as the teacher encodes them."""
        return ResolvedSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            checkpointing=self.checkpointing,
            max_length=length,
            long_texts=long_texts,
            stride=self.stride,
            context=context,
            learning_rate=self.learning_rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            precision="fp32",  # bfloat16 would round off the differences in states and attention that are compared
            save_every=self.save_every,
            seed=self.seed,
        )


@dataclass(frozen=True)
class TextDistillSettings:
    """Settings of ``cloze distill --text`` and ``cloze.distill(text=...)``: distillation on raw text, without labels.

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range or two settings contradict each other.

    Example:
        >>> settings = cloze.TextDistillSettings(objective="vectors", preset="mini", steps=1000)
        >>> settings.batch_size
        32
    """

    objective: TextObjective | None = None
    """With --text: what the student imitates; by default, vectors if the teacher is made for them, else relations."""
    layers: int | None = None
    """Number of layers of a new student; by default, those of the preset, or half of the teacher's."""
    preset: str | None = None
    """Size of a new student: tiny, mini, small, medium, base or large."""
    hidden_size: int | None = None
    """With --text: hidden size of a new student; by default, that of the preset or of the teacher."""
    vocab: str | None = None
    """With --text: folder with the vocabulary of a new student, for vectors only; by default, the teacher's."""
    student: str | None = None
    """Another model as the student: a folder, a run or a hub name."""
    start: Literal["layers", "random"] = "layers"
    """With --text: initialize a new student from the teacher (its layers if the shapes are equal), or randomly."""
    pooling: str | None = None
    """With --text, for vectors: pooling of both models, such as mean or cls; by default, the teacher's."""
    distance: Literal["cosine", "mse"] = "cosine"
    """With --text, for vectors: loss between the vectors, 1 - cosine or mean squared error."""
    match_width: Literal["projection", "pca"] = "projection"
    """With --text, for vectors of another width: learn a projection to the teacher's, or reduce the latter by PCA."""
    teacher_layer: int | None = None
    """With --text, for relations: the teacher's layer, counted from 1; by default the last, or the 21st of 24."""
    relation_heads: int | None = None
    """With --text, for relations: number of heads; by default, the largest common divisor of the widths up to 48."""
    split: Literal["sentences", "passages"] | None = None
    """With --text: train on single sentences (the default for vectors), or on passages that fill the maximum length."""
    column: str = "text"
    """With --text: column with the texts in JSONL and Parquet files."""
    max_length: int | None = None
    """With --text: maximum length of a text in tokens; by default 128, or the teacher's if that is less."""
    held_out: float = 0.02
    """With --text: fraction of the texts that is held out for evaluation, at most 2,000 texts."""
    cache: bool = True
    """With --text, for vectors: compute the teacher's vectors once and store them in the run's folder."""
    teacher_precision: InferencePrecision = "auto"
    """With --text, for vectors: precision of the teacher: fp32, bf16, int8, or auto (bf16 where it is faster)."""
    epochs: int | None = None
    """Passes over the training texts; 1 if neither steps nor hours is given."""
    steps: int | None = None
    """With --text: optimizer steps, instead of epochs."""
    hours: float | None = None
    """With --text: training time in hours, instead of epochs."""
    batch_size: int = 32
    """Batch size: texts per optimizer step."""
    accumulate: int = 1
    """Gradient-accumulation steps per batch; more steps need less memory and give the same result."""
    learning_rate: float | None = None
    """Peak learning rate; by default 1e-3, or 5e-4 if the hidden size of the student is above 384."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate warms up."""
    weight_decay: float = 0.01
    """Weight decay of matrices and embeddings; biases and LayerNorm are not decayed."""
    dropout: float = 0.0
    """Dropout probability of hidden states and attention; 0 by default, because the student imitates the teacher."""
    precision: PrecisionName = "auto"
    """With --text: training precision: fp32, bf16, or auto (bf16 where it is faster)."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute the student's activations in the backward pass to save memory."""
    save_every: int = 500
    """Steps between checkpoints."""
    evaluate_every: int = 500
    """With --text: steps between evaluations on the held-out texts."""
    seed: int = 0
    """Random seed of new weights, the held-out texts, the order of the texts and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        self._check_objective()
        shape = [name for name in ("layers", "preset", "hidden_size", "vocab") if getattr(self, name) is not None]
        if self.student is not None and shape:
            raise ConfigError(f"student and {shape[0]} exclude each other; a given student has its shape: choose one")
        for name in ("layers", "hidden_size", "teacher_layer", "relation_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; expected at least 1")
        ends = [name for name in ("epochs", "steps", "hours") if getattr(self, name) is not None]
        if len(ends) > 1:
            raise ConfigError(f"{' and '.join(ends)} exclude each other; each defines the end of training: choose one")
        if not 0 < self.held_out <= 0.5:
            raise ConfigError(f"held_out is {self.held_out}; expected a fraction above 0, up to 0.5")
        if self.evaluate_every < 1:
            raise ConfigError(f"evaluate_every is {self.evaluate_every}; expected at least 1")
        self.text_training().loop(1)

    def _check_objective(self) -> None:
        """Refuse an unknown objective, and settings of another objective than the given one."""
        known = get_args(TextObjective)
        if self.objective is not None and self.objective not in known:
            raise ConfigError(f"unknown objective {self.objective!r}{did_you_mean(self.objective, known)}")
        for owner, names in _TEXT_OBJECTIVE_SETTINGS.items():
            for name in names if self.objective not in (None, owner) else ():
                if getattr(self, name) != getattr(TextDistillSettings, name):
                    raise ConfigError(
                        f"{name} is {getattr(self, name)!r}, which is for the objective {owner}; leave it out for "
                        f"{self.objective}"
                    )

    def text_training(self) -> "TextTraining":
        """Return the settings of the training."""
        return TextTraining(
            epochs=self.epochs or 1,
            steps=self.steps,
            hours=self.hours,
            evaluate_every=self.evaluate_every,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            checkpointing=self.checkpointing,
            max_length=TEXT_LENGTH if self.max_length is None else self.max_length,
            learning_rate=TEXT_RATE if self.learning_rate is None else self.learning_rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            dropout=self.dropout,
            precision=self.precision,
            save_every=self.save_every,
            seed=self.seed,
        )


@dataclass(frozen=True)
class TextTraining(ResolvedSettings):
    """Settings of a training on raw text, whose length may be given in steps or hours instead of epochs."""

    steps: int | None = None
    hours: float | None = None
    evaluate_every: int = 500

    @property
    def summary(self) -> str:
        """The main settings in one line, for the model card."""
        return super().summary.partition(" epochs, ")[2]

    def loop(self, steps_per_epoch: int) -> LoopSettings:
        """Return the settings of the loop."""
        by_epochs = self.steps is None and self.hours is None
        steps = self.epochs * steps_per_epoch if by_epochs else self.steps
        every = self.evaluate_every
        return replace(super().loop(steps_per_epoch), steps=steps, hours=self.hours, evaluate_every=every)


@dataclass(frozen=True)
class AdaptSettings:
    """Settings of ``cloze adapt`` and ``cloze.adapt``: further pre-training on domain and task text.

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range or the masking is not available here.

    Example:
        >>> cloze.AdaptSettings(domain_steps=500, overlap="drop").masking
        'word'
    """

    domain_steps: int = 2000
    """Optimizer steps on the domain text."""
    task_steps: int = 300
    """Optimizer steps on the texts of the training rows."""
    adapt_learning_rate: float = 1e-4
    """Peak learning rate of both pre-training stages."""
    adapt_batch_size: int = 32
    """Batch size of both pre-training stages, in sequences per optimizer step."""
    adapt_max_length: int = 128
    """Maximum sequence length of both pre-training stages, in tokens."""
    masking: Masking = "word"
    """Unit of masking: token, word, ngram or span."""
    held_out: float = 0.05
    """Fraction of the domain documents that is held out for evaluation."""
    seeds: int = 3
    """Number of fine-tuning runs per starting model; gains are paired by seed and by dev row."""
    overlap: Literal["refuse", "drop", "allow"] = "refuse"
    """If dev or test rows occur in the domain text: refuse the text, drop the affected documents, or allow them."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.masking in ("entity", "correction"):
            raise ConfigError(f"masking is {self.masking}; expected token, word, ngram or span")
        SearchSettings(seeds=self.seeds)
        for steps in (self.domain_steps, self.task_steps):
            self.pretraining(steps, FinetuneSettings())

    def pretraining(self, steps: int, finetuning: FinetuneSettings) -> PretrainSettings:
        """Return the settings of one stage: masked words only, since a task's rows have no next sentences.

        Precision, accumulation and checkpointing are taken from the fine-tuning settings.
        """
        return PretrainSettings(
            steps=steps,
            batch_size=self.adapt_batch_size,
            max_length=self.adapt_max_length,
            learning_rate=self.adapt_learning_rate,
            masking=self.masking,
            objective="none",
            accumulate=finetuning.accumulate,
            checkpointing=finetuning.checkpointing,
            precision=finetuning.precision,
        )
