"""What can be said about a training. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass

from cloze.errors import ConfigError


@dataclass(frozen=True)
class LoopSettings:
    """The numbers that the loop itself needs."""

    steps: int
    rate: float
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0  # largest norm of the gradient
    save_every: int = 200
    log_every: int = 10
    evaluate_every: int = 0  # 0: at the end only
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; at least 1 was expected")
        if not 0 < self.rate < 1:
            raise ConfigError(f"rate is {self.rate}; a learning rate such as 1e-4 was expected")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is {self.warmup}; a share of the steps, from 0 up to 1, was expected")
        # Streams of random numbers start from it, and NumPy takes no negative ones.
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed}; a whole number from 0 up to 2**32 was expected")
        if not 0 <= self.weight_decay < 1:
            raise ConfigError(f"weight_decay is {self.weight_decay}; a small number such as 0.01 was expected")
        if self.save_every < 1 or self.log_every < 1:
            raise ConfigError("save_every and log_every must be at least 1")


@dataclass(frozen=True)
class PretrainSettings:
    """What ``cloze pretrain`` can be told."""

    preset: str = "mini"
    """Size of a new model: tiny, mini, small, medium, base or large."""
    steps: int = 10_000
    """Updates."""
    batch: int = 32
    """Sequences an update."""
    length: int = 128
    """Tokens a sequence, at most."""
    rate: float = 5e-4
    """Peak learning rate."""
    warmup: float = 0.05
    """Share of the steps over which the rate rises."""
    weight_decay: float = 0.01
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    dropout: float = 0.1
    """Of a new model: hidden states and attention."""
    mask_rate: float = 0.15
    """Share of tokens that are chosen."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Of the chosen: hidden, replaced, left."""
    save_every: int = 500
    """Steps between checkpoints."""
    evaluate_every: int = 500
    """Steps between looks at the held-out documents."""
    seed: int = 0
    """Start, order, pairs, masks and dropout all follow from it."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"batch is {self.batch}; at least 1 was expected")
        self.loop()

    def loop(self) -> LoopSettings:
        """The part that the loop understands."""
        return LoopSettings(
            steps=self.steps,
            rate=self.rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            save_every=self.save_every,
            evaluate_every=self.evaluate_every,
            seed=self.seed,
        )


@dataclass(frozen=True)
class FinetuneSettings:
    """What ``cloze finetune`` can be told. Defaults are from the paper's grid (appendix A.3)."""

    epochs: int = 3
    """Passes over the training rows."""
    batch: int = 32
    """Rows an update."""
    length: int = 128
    """Tokens a row, at most; longer ones are cut, and their number is told."""
    rate: float = 5e-5
    """Peak learning rate."""
    warmup: float = 0.1
    """Share of the steps over which the rate rises."""
    weight_decay: float = 0.01
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    dropout: float | None = None
    """Of hidden states and attention; the model's own if left out."""
    save_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """New head, order and dropout all follow from it."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; at least 1 was expected")
        self.loop(1)

    def loop(self, steps_an_epoch: int) -> LoopSettings:
        """The part that the loop understands."""
        return LoopSettings(
            steps=self.epochs * steps_an_epoch,
            rate=self.rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            save_every=self.save_every,
            evaluate_every=steps_an_epoch,
            seed=self.seed,
        )
