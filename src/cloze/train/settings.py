"""Training settings: those of the loop, which all kinds of training share, and those of pre-training and its recipes.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloze.corpus.settings import (
    ExampleSettings,
    Masking,
    MaskSettings,
    Objective,
    Phase,
    check_seed,
    parse_mixture,
    parse_phases,
)
from cloze.errors import ConfigError, did_you_mean
from cloze.options import PREDICTS, STATIC_BACKBONES, BackboneName, PositionKind, Prediction, check_types

Parallel = Literal["ddp", "fsdp"]
ScheduleName = Literal["linear", "wsd"]
PrecisionName = Literal["auto", "fp32", "bf16"]

DEFAULT_STEPS = 10_000
RECIPES = Path(__file__).parents[1] / "recipes"
# Settings that may differ when a run is resumed: they affect speed, memory and reports, but not the trained weights.
MAY_CHANGE = frozenset({"parallel", "checkpointing", "save_every", "tensorboard"})
# Settings that earlier versions did not have: a run records them only if they are not the default.
RECORDED_IF_SET = frozenset(
    {
        *("backbone", "layers", "hidden_size", "heads", "segments", "position_kind", "generator", "generator_size"),
        *("epochs", "window"),
    }
)


def check_precision(name: str) -> None:
    """Refuse an unknown precision."""
    if name not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"unknown precision {name!r}; expected auto, fp32 or bf16")


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the training loop; each kind of training derives them from its own settings."""

    steps: int | None
    learning_rate: float
    hours: float | None = None
    warmup: float = 0.1
    schedule: ScheduleName = "linear"
    decay: float = 0.2  # share of the training over which wsd decays
    weight_decay: float = 0.01
    epsilon: float = 1e-8
    clip: float = 1.0  # maximum gradient norm
    accumulate: int = 1
    parallel: Parallel = "ddp"
    save_every: int = 200
    log_every: int = 10
    evaluate_every: int = 0  # 0: only at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is None and self.hours is None:
            raise ConfigError("neither steps nor hours is given; a training needs an end")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; expected at least 1")
        if self.hours is not None and not 0 < self.hours < 1e6:
            raise ConfigError(f"hours is {self.hours}; expected a positive number, such as 0.5 for half an hour")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"learning_rate is {self.learning_rate}; expected a learning rate such as 1e-4")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is {self.warmup}; expected a fraction of the steps, at least 0 and below 1")
        if self.schedule == "wsd" and not 0 < self.decay <= 1 - self.warmup:
            raise ConfigError(
                f"decay is {self.decay}; expected a fraction of the steps above 0 and at most {1 - self.warmup:g}, "
                "which the warm-up leaves"
            )
        check_seed(self.seed)
        if not 0 <= self.weight_decay < 1:
            raise ConfigError(f"weight_decay is {self.weight_decay}; expected a small number such as 0.01")
        if not 0 < self.epsilon < 1:
            raise ConfigError(f"epsilon is {self.epsilon}; expected a small number such as 1e-6")
        if self.accumulate < 1:
            raise ConfigError(f"accumulate is {self.accumulate}; expected at least 1")
        if self.save_every < 1:
            raise ConfigError(f"save_every is {self.save_every}; expected at least 1")


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of ``cloze pretrain`` and ``cloze.pretrain``.

    The defaults train a new small model with the objectives of BERT. Each attribute's docstring describes it, and is
    also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range or two settings contradict each other.

    Example:
        >>> settings = cloze.PretrainSettings(preset="tiny", steps=100, masking="word")
        >>> settings.learning_rate
        0.0005
    """

    backbone: BackboneName = "bert"
    """Architecture: bert, gpt (left to right), deberta (disentangled attention), xlnet (words in random order), electra
    (a bert trained to detect replaced tokens), elmo (two LSTMs), or word2vec or glove (one vector per word piece); the
    recipe of the same name has its settings."""
    preset: str = "mini"
    """Size of a new model: tiny, mini, small, medium, base or large."""
    layers: int | None = None
    """For a new model: number of layers, instead of that of the preset."""
    hidden_size: int | None = None
    """For a new model: hidden size, instead of that of the preset."""
    heads: int | None = None
    """For a new model: number of attention heads; by default, one per 64 of the hidden size."""
    segments: int | None = None
    """For a new model: number of segments, 2 by default."""
    epochs: int | None = None
    """For word2vec and glove: passes over the corpus (5) or over the counted pairs (15); steps and hours replace it."""
    window: int | None = None
    """For word2vec and glove: pieces to each side that count as context; 5 for word2vec, 10 for glove."""
    position_kind: PositionKind = "learned"
    """For a new bert or gpt: position embeddings that are learned, or fixed sines and cosines (sinusoidal); or vectors
    of distances in every layer, for queries (relative_key) or for queries and keys (relative_key_query)."""
    steps: int | None = None
    """Optimizer steps; 10,000 if neither steps nor hours is given."""
    hours: float | None = None
    """Training time in hours, summed over resumes; the learning rate reaches zero at its end."""
    batch_size: int = 32
    """Batch size: sequences per optimizer step."""
    accumulate: int = 1
    """Gradient-accumulation steps per process; more steps need less memory."""
    max_length: int = 128
    """Maximum sequence length in tokens."""
    long_length: int | None = None
    """Sequence length of a second phase at the end, such as 512; the number of tokens per step stays the same."""
    long_share: float = 0.1
    """Fraction of training that the second phase takes."""
    phases: str | None = None
    """Phases as LENGTHxBATCH:SHARE, such as 32x128:0.2,128x64:0.8; replaces max_length, batch_size and long_length."""
    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup: float = 0.05
    """Fraction of the steps over which the learning rate warms up."""
    schedule: ScheduleName = "linear"
    """Learning rate after the warm-up: linear decay to zero, or wsd (warm-up, stable, decay), which can be extended."""
    decay: float = 0.2
    """For wsd: final fraction of training over which the learning rate decays to zero."""
    weight_decay: float = 0.01
    """Weight decay of matrices and embeddings; biases and LayerNorm are not decayed."""
    epsilon: float = 1e-8
    """Adam's epsilon; Google's code and the recipes based on it use 1e-6."""
    dropout: float | None = None
    """Dropout of hidden states and attention; by default 0.1 for a new model, and unchanged for a loaded one."""
    objective: Objective = "nsp"
    """Content of the sequences, for bert only (others read full sentences): nsp (does B follow A), sop (are A and B
    swapped), relation (does B follow A, or is it from elsewhere in the document, or from another one), copy (B is A
    with words dropped or moved), none (full sentences)."""
    mixture: str | None = None
    """Several objectives in one run, by their shares of the steps, such as none:0.5,relation:0.3,copy:0.2."""
    masking: Masking = "token"
    """Unit of masking: token, word, ngram, span, entity; or correction (similar words instead of [MASK])."""
    mask_rate: float = 0.15
    """Fraction of the tokens that are selected for prediction."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Fractions of the selected tokens that are masked, replaced with a random token, and left unchanged."""
    ngrams: tuple[float, float, float, float] = (0.4, 0.3, 0.2, 0.1)
    """For n-gram and correction masking: shares of spans of one, two, three and four words; ALBERT's are 6/11,
    3/11, 2/11, 0."""
    static: int = 0
    """Static masking: number of fixed variants of pairs and masks, as in the original BERT; 0: new ones every epoch."""
    entities: Path | None = None
    """For entity masking: a file with one entity per line."""
    similar: Path | None = None
    """For correction masking: a file of similar words; by default they are learned from the corpus."""
    boundary: bool = False
    """With span masking: also predict each token of a span from the two tokens next to the span, as SpanBERT does."""
    generator_size: float = 0.25
    """For electra: hidden size of the generator, as a fraction of the model's."""
    generator: Path | None = None
    """For electra: folder of a trained masked model that becomes the generator, instead of a new one."""
    shared_layers: bool = False
    """For a new model: share the parameters of all layers, as in ALBERT."""
    embedding_size: int | None = None
    """For a new model: size of the embeddings, as in ALBERT; the hidden size by default."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass; a third slower, but uses much less memory."""
    precision: PrecisionName = "auto"
    """fp32, bf16, or auto: bf16 where it is faster."""
    parallel: Parallel = "ddp"
    """Under torchrun: ddp (every process holds all weights) or fsdp (every process holds a shard)."""
    save_every: int = 500
    """Steps between checkpoints."""
    evaluate_every: int = 500
    """Steps between evaluations on the held-out documents."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""
    seed: int = 0
    """Random seed for the initial weights, order, pairs, masks and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        check_precision(self.precision)
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; expected at least 1")
        if self.accumulate > self.batch_size:
            raise ConfigError(f"accumulate is {self.accumulate}, more than the {self.batch_size} sequences of a batch")
        if self.static < 0:
            raise ConfigError(f"static is {self.static}; expected a number of variants, 0 for none")
        self._check_backbone()
        self._check_second_phase()
        self._check_masking()
        for phase in self.length_phases():
            if phase.batch_size < self.accumulate:
                raise ConfigError(
                    f"accumulate is {self.accumulate}, more than the {phase.batch_size} sequences of a batch of "
                    f"{phase.max_length} tokens"
                )
            self.examples(phase.max_length)
        if self.mixture is not None and self.objective != PretrainSettings.objective:
            raise ConfigError(f"objective is {self.objective} and mixture is {self.mixture}; leave out one of them")
        if {"nsp", "relation"} & set(self.objectives()) and "sop" in self.objectives():
            raise ConfigError(f"mixture is {self.mixture}; a model has a head for nsp or for sop, not for both")
        self.loop()
        self.masks()

    def _check_backbone(self) -> None:
        for name in ("generator", "generator_size"):
            if self._is_set(name) and self.backbone != "electra":
                raise ConfigError(f"{name} is {getattr(self, name)}, but only the backbone electra has a generator")
        if not 0 < self.generator_size <= 1:
            raise ConfigError(f"generator_size is {self.generator_size}; expected a fraction above 0 and at most 1")
        for name in ("epochs", "window"):
            value = getattr(self, name)
            if value is not None and (value < 1 or self.backbone not in STATIC_BACKBONES):
                raise ConfigError(f"{name} is {value}; expected at least 1, and the backbone word2vec or glove")
        if self.backbone == "bert":
            return
        only_bert = ("objective", "mixture", "static", "boundary", "shared_layers", "embedding_size")
        masking = ("masking", "mask_rate", "mask_mix", "ngrams") if self.predicts != "masked" else ()
        attention = ("position_kind", "heads", "segments", "checkpointing")
        layers = (*attention, "layers", "dropout", "phases", "long_length", "schedule", "warmup", "accumulate")
        others = {"deberta": attention[:1], "elmo": attention, "word2vec": layers, "glove": layers}
        others["xlnet"] = ("position_kind", "mask_mix")  # selected words are hidden from all others
        for name in (*only_bert, *masking, *others.get(self.backbone, ())):
            if self._is_set(name) and (name, getattr(self, name)) != ("objective", "none"):
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, but it does not apply to the backbone {self.backbone}; leave "
                    "it out"
                )

    @property
    def predicts(self) -> Prediction:
        """What the backbone predicts."""
        return PREDICTS[self.backbone]

    @property
    def predicted_share(self) -> float:
        """Fraction of the tokens that are predicted."""
        return self.mask_rate if self.predicts == "masked" else 1.0

    def _check_second_phase(self) -> None:
        given = [name for name in ("max_length", "batch_size", "long_length") if self._is_set(name)]
        if self.phases is not None and given:
            raise ConfigError(f"phases is {self.phases!r}, and {given[0]} is set as well; leave out one of them")
        if self.long_length is not None and self.long_length <= self.max_length:
            raise ConfigError(f"long_length is {self.long_length}; expected more than max_length ({self.max_length})")
        if not 0 < self.long_share < 1:
            raise ConfigError(f"long_share is {self.long_share}; expected a fraction between 0 and 1")
        if self.long_length is None and self.long_share != PretrainSettings.long_share:
            raise ConfigError(f"long_share is {self.long_share}, but there is no second phase; give a long_length")

    def _check_masking(self) -> None:
        if self.boundary and self.masking != "span":
            raise ConfigError(f"boundary needs the masking span, but masking is {self.masking}")
        if self.ngrams != PretrainSettings.ngrams and self.masking not in ("ngram", "correction"):
            raise ConfigError(f"ngrams only apply to the maskings ngram and correction, but masking is {self.masking}")
        for name, masking in (("entities", "entity"), ("similar", "correction")):
            if getattr(self, name) is not None and self.masking != masking:
                raise ConfigError(
                    f"{name} only applies to the masking {masking}, but masking is {self.masking}; leave out one of "
                    f"them"
                )
        if self.masking == "entity" and self.entities is None:
            raise ConfigError("entity masking needs a dictionary; give a file with one entity per line with --entities")

    def loop(self) -> LoopSettings:
        """Return the settings of the loop."""
        return LoopSettings(
            steps=DEFAULT_STEPS if self.steps is None and self.hours is None else self.steps,
            hours=self.hours,
            learning_rate=self.learning_rate,
            warmup=self.warmup,
            schedule=self.schedule,
            decay=self.decay,
            weight_decay=self.weight_decay,
            epsilon=self.epsilon,
            accumulate=self.accumulate,
            parallel=self.parallel,
            save_every=self.save_every,
            evaluate_every=self.evaluate_every,
            seed=self.seed,
        )

    def length_phases(self) -> tuple[Phase, ...]:
        """Return the phases of the run, whose shares add up to 1."""
        if self.phases is not None:
            return parse_phases(self.phases)
        if self.long_length is None:
            return (Phase(self.max_length, self.batch_size, 1.0),)
        # Same number of tokens per step as before: the learning rate still fits and memory does not grow.
        batch_size = max(self.accumulate, self.batch_size * self.max_length // self.long_length)
        return (
            Phase(self.max_length, self.batch_size, 1 - self.long_share),
            Phase(self.long_length, batch_size, self.long_share),
        )

    def objectives(self) -> dict[Objective, float]:
        """Return the objectives of the run with their shares of the steps."""
        if self.backbone != "bert":
            return {"none": 1.0}
        return {self.objective: 1.0} if self.mixture is None else parse_mixture(self.mixture)

    def examples(self, max_length: int | None = None, objective: Objective | None = None) -> ExampleSettings:
        """Return how text becomes sequences of a length, by default those of the first phase and objective."""
        length = self.length_phases()[0].max_length if max_length is None else max_length
        return ExampleSettings(next(iter(self.objectives())) if objective is None else objective, length)

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(PretrainSettings, name))

    def masks(self) -> MaskSettings:
        """Return the settings for selecting and masking tokens."""
        return MaskSettings(
            masking=self.masking, predicts=self.predicts, rate=self.mask_rate, mix=self.mask_mix, ngrams=self.ngrams
        )

    @property
    def longest(self) -> int:
        """The longest sequence length."""
        return max(phase.max_length for phase in self.length_phases())


@dataclass(frozen=True)
class MlmEvaluationSettings:
    """Settings of ``cloze evaluate mlm``; equal settings give equal masks for models with the same vocabulary."""

    max_length: int = 128
    """For mlm: maximum sequence length in tokens."""
    mask_rate: float = 0.15
    """For mlm: fraction of the tokens that are selected for prediction."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """For mlm: fractions of the selected tokens that are masked, replaced with a random token, and left unchanged."""
    tokens: int = 200_000
    """For mlm: number of tokens to evaluate on, in sequences sampled from the whole text."""
    seed: int = 0
    """For mlm: random seed for sequences and masks."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; expected at least 1")
        check_seed(self.seed)
        ExampleSettings(max_length=self.max_length)  # rejects bad values before any text is read
        MaskSettings(rate=self.mask_rate, mix=self.mask_mix)


def recipe_names() -> list[str]:
    """Return the names of the pre-training recipes that ship with cloze."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """Read the settings of a recipe.

    Args:
        name: One of ``recipe_names()``.

    Returns:
        Keyword arguments for ``PretrainSettings``.

    Raises:
        ConfigError: If there is no recipe of this name.

    Example:
        >>> PretrainSettings(**read_recipe("albert"), steps=1000)
    """
    if name not in recipe_names():
        raise ConfigError(
            f"unknown recipe {name!r}{did_you_mean(name, recipe_names())}; there are {', '.join(recipe_names())}; "
            "pass your own file with --config"
        )
    values = tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
