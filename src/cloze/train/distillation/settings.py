"""What ``cloze distill`` can be told. Light to import: the command line reads it.

The text under a field is its help on the command line.
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
    """Who the student is, what it takes from its teacher, and how long it learns."""

    layers: int | None = None
    """Layers of the student, which are the teacher's own to start with; half of them if left out."""
    take: Take | None = None
    """Which of the teacher's layers those are: the first, or alternate ones up to the last, as if left out."""
    preset: str | None = None
    """A new student of this size instead: tiny, mini, small, medium, base or large."""
    student: str | None = None
    """Another model with the same vocabulary as student instead: a folder, a run, or a hub name."""
    labels_weight: float = 0.5
    """How much the labels of the rows count."""
    logits_weight: float = 1.0
    """How much the teacher's answers count."""
    states_weight: float = 1.0
    """How much the states of the teacher's layers count."""
    attention_weight: float = 1.0
    """How much the teacher's attention counts; nothing where the student has another number of heads."""
    temperature: float = 2.0
    """What both answers are divided by before they are compared: more shows more of what the teacher thinks second."""
    epochs: int = 6
    """Passes over the rows."""
    batch_size: int = 32
    """Rows an update."""
    accumulate: int = 1
    """Gradient-accumulation steps: more of them need less memory and give the same result."""
    stride: int = 128
    """To answer: tokens from one window of a long context to the next; half of a window's room if that is less."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup: float = 0.1
    """Share of the steps over which the rate rises."""
    weight_decay: float = 0.01
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    dropout: float = 0.0
    """Of hidden states and attention; none if left out: what the teacher shows is to be followed exactly."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute the student's activations in the backward pass, to need less memory."""
    save_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """What is new in the student, order and dropout all follow from it."""

    def __post_init__(self) -> None:
        check_types(self)
        chosen = [name for name in ("layers", "preset", "student") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)} exclude each other; each says who the student is: choose one")
        if self.take is not None and chosen in (["preset"], ["student"]):
            raise ConfigError(f"take is {self.take!r}, but a {chosen[0]} takes no layers of the teacher; leave one out")
        if self.layers is not None and self.layers < 1:
            raise ConfigError(f"layers is {self.layers}; at least 1 was expected")
        for name in WEIGHTS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; a number from 0 up was expected")
        if not self.labels_weight and not self.logits_weight:
            raise ConfigError("labels_weight and logits_weight are 0: nothing would teach the student's head")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; a number above 0 was expected")
        self.training(SHORTEST, "cut", context=False)

    def training(self, length: int, long_texts: LongTexts, *, context: bool) -> ResolvedSettings:
        """The same training as that of any model, of texts as the teacher reads them."""
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
            precision="fp32",  # states and attention are compared by what bfloat16 rounds off
            save_every=self.save_every,
            seed=self.seed,
        )
