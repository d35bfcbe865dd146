"""Settings of ``cloze distill``.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from dataclasses import dataclass
from typing import Literal

from cloze.errors import ConfigError
from cloze.options import LongTexts, check_types
from cloze.train.finetuning.settings import SHORTEST, ResolvedSettings

Take = Literal["first", "alternate"]
WEIGHTS = ("labels_weight", "logits_weight", "states_weight", "attention_weight")


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
