"""What can be said about a training. Light to import: the command line reads it.

The text under a field is its help on the command line.

Ways to tune that exclude each other, and what each may be told. Light to import: settings are checked here.

What fine-tuning may be told where rows are few. Light to import: settings are checked here.

What can be said about contrastive training, besides what fine-tuning knows. Light to import.

The text under a field is its help on the command line.

What a search over several fine-tuning runs can be told. Light to import: the command line reads it.

The text under a field is its help on the command line.

What ``cloze adapt`` can be told. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from cloze.corpus.settings import ExampleSettings, Masking, MaskSettings, Objective, check_seed
from cloze.errors import ConfigError
from cloze.kinds import LONGEST_ANSWER, AdapterKind, FeatureHead, Features, LongTexts


def check_ways(settings: "FinetuneSettings") -> None:
    """Refuse what cannot be, or would be silently left undone."""
    if settings.freeze_layers < 0:
        raise ConfigError(f"freeze_layers is {settings.freeze_layers}; a number of layers was expected, or 0 for none")
    if not 0 < settings.layer_decay <= 1:
        raise ConfigError(f"layer_decay is {settings.layer_decay}; a share above 0 and up to 1 was expected")
    if settings.adapter_size is not None and settings.adapter_size < 1:
        raise ConfigError(f"adapter_size is {settings.adapter_size}; at least 1 was expected")
    if settings.adapter_size is not None and settings.adapter is None:
        raise ConfigError(
            f"adapter_size is {settings.adapter_size}, but no adapter is trained; choose houlsby or lora as adapter"
        )
    if settings.feature_head != "linear" and settings.frozen is None:
        raise ConfigError(
            f"feature_head is {settings.feature_head!r}, which reads frozen states; choose last, last4 or mix as frozen"
        )
    if settings.precision == "bf16" and settings.frozen is not None:
        raise ConfigError("precision is bf16, but frozen states are computed once, in fp32; leave out one of them")
    chosen = [name for name in ("adapter", "frozen") if getattr(settings, name) is not None]
    chosen += ["freeze_layers"] if settings.freeze_layers else []
    chosen += ["layer_decay"] if settings.layer_decay != 1 else []
    # Freezing some layers and slowing the others go together; an adapter or frozen states leave nothing to freeze.
    if len(chosen) > 1 and chosen[0] in ("adapter", "frozen"):
        raise ConfigError(f"{' and '.join(chosen)} exclude each other; each says what is trained: choose one")


Augment = Literal["none", "contextual", "edits"]


def check_small_data(settings: "FinetuneSettings") -> None:
    """Refuse what cannot be, or would be silently left undone."""
    if not 0 <= settings.self_teaching < float("inf"):
        raise ConfigError(f"self_teaching is {settings.self_teaching}; a weight from 0 up was expected")
    if not 0 <= settings.teacher_decay < 1:
        raise ConfigError(f"teacher_decay is {settings.teacher_decay}; a share from 0 up to 1 was expected")
    if settings.self_teaching and settings.frozen is not None:
        raise ConfigError("self_teaching and frozen exclude each other; a frozen model has nothing to average")
    if settings.teacher_decay != type(settings).teacher_decay and not settings.self_teaching:
        raise ConfigError(f"teacher_decay is {settings.teacher_decay}, but nothing is averaged; give self_teaching too")
    if settings.augment_copies < 1:
        raise ConfigError(f"augment_copies is {settings.augment_copies}; at least 1 was expected")
    if settings.augment_copies > 1 and settings.augment == "none":
        raise ConfigError(
            f"augment_copies is {settings.augment_copies}, but no rows are made; choose contextual or edits as augment"
        )
    if settings.synonyms is not None and settings.augment != "edits":
        raise ConfigError(f"synonyms are for edits; augment is {settings.augment}")


Parallel = Literal["ddp", "fsdp"]
PrecisionName = Literal["auto", "fp32", "bf16"]


def check_precision(name: str) -> None:
    """Refuse a precision that there is not."""
    if name not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"unknown precision {name!r}; auto, fp32 or bf16 was expected")


@dataclass(frozen=True)
class LoopSettings:
    """The numbers that the loop itself needs."""

    steps: int | None
    rate: float
    hours: float | None = None
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0  # largest norm of the gradient
    accumulate: int = 1
    parallel: Parallel = "ddp"
    save_every: int = 200
    log_every: int = 10
    evaluate_every: int = 0  # 0: at the end only
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is None and self.hours is None:
            raise ConfigError("neither steps nor hours is given; a training needs an end")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; at least 1 was expected")
        if self.hours is not None and not 0 < self.hours < 1e6:
            raise ConfigError(f"hours is {self.hours}; a positive number was expected, 0.5 for half an hour")
        if not 0 < self.rate < 1:
            raise ConfigError(f"rate is {self.rate}; a learning rate such as 1e-4 was expected")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup is {self.warmup}; a share of the steps, from 0 up to 1, was expected")
        check_seed(self.seed)
        if not 0 <= self.weight_decay < 1:
            raise ConfigError(f"weight_decay is {self.weight_decay}; a small number such as 0.01 was expected")
        if self.accumulate < 1:
            raise ConfigError(f"accumulate is {self.accumulate}; at least 1 was expected")
        if self.save_every < 1:
            raise ConfigError(f"save_every is {self.save_every}; at least 1 was expected")


DEFAULT_STEPS = 10_000
# Tokens that a text needs at least: [CLS], one of its own, [SEP].
SHORTEST = 3

# What may differ when a run goes on: where and how it is computed and told, not what.
FREE = frozenset({"parallel", "checkpointing", "save_every", "tensorboard"})


@dataclass(frozen=True)
class PretrainSettings:
    """What ``cloze pretrain`` can be told."""

    preset: str = "mini"
    """Size of a new model: tiny, mini, small, medium, base or large."""
    steps: int | None = None
    """Updates; 10,000 if neither these nor hours are given."""
    hours: float | None = None
    """Time that the training may take, over all resumes; the learning rate reaches zero at its end."""
    batch: int = 32
    """Sequences an update."""
    accumulate: int = 1
    """Parts in which a process works off its share of a batch, for less memory."""
    length: int = 128
    """Tokens a sequence, at most."""
    long_length: int | None = None
    """Tokens a sequence in a second phase at the end, such as 512; an update keeps its number of tokens."""
    long_share: float = 0.1
    """Share of the training that the second phase takes."""
    rate: float = 5e-4
    """Peak learning rate."""
    warmup: float = 0.05
    """Share of the steps over which the rate rises."""
    weight_decay: float = 0.01
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    dropout: float | None = None
    """Of hidden states and attention; 0.1 in a new model and a model's own if left out."""
    objective: Objective = "nsp"
    """What sentences teach: nsp (does B follow A), sop (are A and B swapped), none (full sentences)."""
    masking: Masking = "token"
    """What is chosen together: token, word, ngram, span, entity; or correction, with similar words for [MASK]."""
    mask_rate: float = 0.15
    """Share of tokens that are chosen."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Of the chosen: hidden, replaced, left."""
    static: int = 0
    """Freeze so many variants of pairs and masks, as the original did; 0 makes new ones in every epoch."""
    entities: Path | None = None
    """For entity masking: a file with an entity a line."""
    similar: Path | None = None
    """For correction masking: a file with similar words; without it they are learned from the corpus."""
    boundary: bool = False
    """With span masking: predict each token of a span from the two tokens around it as well, as SpanBERT does."""
    shared_layers: bool = False
    """Of a new model: all layers have the same parameters, as in ALBERT."""
    embedding_size: int | None = None
    """Of a new model: width of the embeddings, as in ALBERT; the hidden size if left out."""
    checkpointing: bool = False
    """Compute a layer's inner states twice instead of keeping them: a third more time, a fraction of the memory."""
    precision: PrecisionName = "auto"
    """fp32, bf16, or auto: bf16 where it is faster."""
    parallel: Parallel = "ddp"
    """Under torchrun: ddp (each process has all weights) or fsdp (each has a share)."""
    save_every: int = 500
    """Steps between checkpoints."""
    evaluate_every: int = 500
    """Steps between looks at the held-out documents."""
    tensorboard: bool = False
    """Write the figures for TensorBoard, too."""
    seed: int = 0
    """Start, order, pairs, masks and dropout all follow from it."""

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.batch < 1:
            raise ConfigError(f"batch is {self.batch}; at least 1 was expected")
        if self.accumulate > self.batch:
            raise ConfigError(f"accumulate is {self.accumulate}, more than the {self.batch} sequences of a batch")
        if self.long_length is not None and self.long_length <= self.length:
            raise ConfigError(f"long_length is {self.long_length}; more than the length {self.length} was expected")
        if not 0 < self.long_share < 1:
            raise ConfigError(f"long_share is {self.long_share}; a share between 0 and 1 was expected")
        if self.boundary and self.masking != "span":
            raise ConfigError(f"boundary needs the masking span; it is {self.masking}")
        for name, masking in (("entities", "entity"), ("similar", "correction")):
            if getattr(self, name) is not None and self.masking != masking:
                raise ConfigError(
                    f"{name} is for the masking {masking}, but it is {self.masking}; leave out one of them"
                )
        if self.long_length is None and self.long_share != PretrainSettings.long_share:
            raise ConfigError(f"long_share is {self.long_share}, but there is no second phase; give a long_length")
        if self.masking == "entity" and self.entities is None:
            raise ConfigError("entity masking needs a dictionary; name a file with an entity a line with --entities")
        if self.static < 0:
            raise ConfigError(f"static is {self.static}; a number of variants was expected, 0 for none")
        self.loop()
        self.examples()
        self.masks()

    def loop(self) -> LoopSettings:
        """The part that the loop understands."""
        return LoopSettings(
            steps=DEFAULT_STEPS if self.steps is None and self.hours is None else self.steps,
            hours=self.hours,
            rate=self.rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            accumulate=self.accumulate,
            parallel=self.parallel,
            save_every=self.save_every,
            evaluate_every=self.evaluate_every,
            seed=self.seed,
        )

    def examples(self, *, long: bool = False) -> ExampleSettings:
        """How sequences are cut, in the first phase or the second."""
        length = self.long_length if long and self.long_length else self.length
        return ExampleSettings(objective=self.objective, length=length)

    def sequences(self, *, long: bool = False) -> int:
        """Sequences an update, in the first phase or the second."""
        if not long or self.long_length is None:
            return self.batch
        # As many tokens an update as before, so that the learning rate stays right and memory does not explode.
        return max(self.accumulate, self.batch * self.length // self.long_length)

    def masks(self) -> MaskSettings:
        """How tokens are chosen and hidden."""
        return MaskSettings(masking=self.masking, rate=self.mask_rate, mix=self.mask_mix)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.long_length or self.length


@dataclass(frozen=True)
class FinetuneSettings:
    """What ``cloze finetune`` can be told. Defaults are from the paper's grid (appendix A.3)."""

    epochs: int = 3
    """Passes over the training rows."""
    batch: int = 32
    """Rows an update."""
    length: int = 128
    """Tokens a row, at most."""
    long_texts: LongTexts = "cut"
    """Longer texts: cut, head-tail (a quarter and three quarters of the length), or windows (all of it is read)."""
    stride: int = 128
    """To answer: in training, tokens from one window of a long context to the next; half of a window's room if less."""
    longest_answer: int = LONGEST_ANSWER
    """To answer: tokens of an answer, at most, when dev rows are scored and later; more where tokens are characters."""
    context: bool = False
    """To tag: read sentences together with their neighbours in the document, as many as there is room for."""
    rate: float | None = None
    """Peak learning rate; if left out, 5e-5, or 1e-3 where the model itself is frozen."""
    warmup: float = 0.1
    """Share of the steps over which the rate rises."""
    weight_decay: float = 0.01
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    dropout: float | None = None
    """Of hidden states and attention; the model's own if left out."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rare labels count for more, so that each counts as much as any other."""
    patience: int = 0
    """Stop after so many epochs without a better dev score, and keep the best weights; 0: train to the end."""
    calibrate: bool = False
    """Fit temperature and threshold on the dev rows, so that probabilities mean what they say."""
    adapter: AdapterKind | None = None
    """Train an adapter and leave the model itself as it is: houlsby (two small networks a layer), lora (low rank)."""
    adapter_size: int | None = None
    """The adapter's bottleneck (64 if left out), or the rank of lora (8)."""
    frozen: Features | None = None
    """Train nothing but a head on frozen states: last layer, last4 side by side, or a learned mix of all."""
    feature_head: FeatureHead = "linear"
    """What reads frozen states: linear, or lstm (two layers, both directions)."""
    freeze_layers: int = 0
    """The embeddings and so many of the lowest layers stay as they are; 0: all of the model is trained."""
    layer_decay: float = 1.0
    """Each layer learns at so much of the rate of the layer above it."""
    self_teaching: float = 0.0
    """How much the running average of the model's own weights counts as a second teacher; 0: not at all."""
    teacher_decay: float = 0.999
    """How much of that average stays at each step."""
    augment: Augment = "none"
    """More training rows: contextual (words that the model would say), edits (swapped, lost, doubled, similar ones)."""
    augment_copies: int = 1
    """So many more of each row."""
    synonyms: str | None = None
    """For edits: a file with a word and its synonyms a line; without it, similar words are those of like vectors."""
    precision: PrecisionName = "auto"
    """fp32, bf16, or auto: bf16 where it is faster. Weights and heads stay float32, and dev rows are scored in it."""
    save_every: int = 500
    """Steps between checkpoints."""
    seed: int = 0
    """New head, order and dropout all follow from it."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("length", SHORTEST), ("stride", 1), ("longest_answer", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; at least {least} was expected")
        if self.patience < 0:
            raise ConfigError(f"patience is {self.patience}; a number of epochs was expected, or 0")
        check_precision(self.precision)
        check_ways(self)
        check_small_data(self)
        self.loop(1)

    @property
    def peak_rate(self) -> float:
        """The rate that was asked for, or the usual one of what is trained: new parts alone can take larger steps."""
        if self.rate is not None:
            return self.rate
        return 5e-5 if self.trains_all else 1e-3

    @property
    def summary(self) -> str:
        """What a model card says of a training."""
        return (
            f"{self.epochs} epochs, batch {self.batch}, rate {self.peak_rate:g}, seed {self.seed}, "
            f"computed in {self.precision}"
        )

    @property
    def trains_all(self) -> bool:
        """Whether the model itself is trained, and not only what is added to it."""
        return self.adapter is None and self.frozen is None

    def loop(self, steps_an_epoch: int) -> LoopSettings:
        """The part that the loop understands."""
        return LoopSettings(
            steps=self.epochs * steps_an_epoch,
            rate=self.peak_rate,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
            save_every=self.save_every,
            evaluate_every=steps_an_epoch,
            seed=self.seed,
        )


@dataclass(frozen=True)
class BlankSettings:
    """How a text gets its blanks. The same settings give every model with the same vocabulary the same blanks."""

    length: int = 128
    """For mlm: tokens a sequence, at most."""
    mask_rate: float = 0.15
    """For mlm: share of tokens that are blanks."""
    mask_mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """For mlm: of the blanks, those that are hidden, replaced, left."""
    tokens: int = 200_000
    """For mlm: how much of the text is looked at, sequences drawn from all of it."""
    seed: int = 0
    """For mlm: decides which sequences and which blanks."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"tokens is {self.tokens}; at least 1 was expected")
        check_seed(self.seed)
        ExampleSettings(length=self.length)  # before any text is read
        MaskSettings(rate=self.mask_rate, mix=self.mask_mix)


@dataclass(frozen=True)
class SimilaritySettings:
    """How texts are told apart."""

    temperature: float = 0.05
    """For similarity: by what cosines are divided; the lower, the more the nearest wrong texts count."""
    vectors: str | None = None
    """For similarity: the pooling that is trained, cls, mean, max or mean_max; the folder's own if left out."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"temperature is {self.temperature}; a number above 0 was expected, such as 0.05")


def check_meant(task: str, similarity: SimilaritySettings) -> None:
    """Refuse what is for similarity where another task is learned: it would be silently left undone."""
    from cloze.tasks.similarity.kind import SIMILARITY  # imports numpy, which help must not

    for field in fields(similarity):
        value = getattr(similarity, field.name)
        if task.lower() != SIMILARITY.name and value != field.default:
            raise ConfigError(f"{field.name} is {value!r}, which is for similarity; leave it out")


@dataclass(frozen=True)
class SearchSettings:
    """Whether fine-tuning is one run or several."""

    grid: bool = False
    """Try the paper's 18 settings (batch 16, 32; rate 5e-5, 3e-5, 2e-5; epochs 2, 3, 4), then use the best."""
    seeds: int = 1
    """Runs with different seeds; the best one's model is kept, and mean and spread are told."""
    folds: int = 0
    """Where there is no dev set: so many models, each scored on the rows that it has not seen."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; at least 1 was expected")
        if self.folds == 1 or self.folds < 0:
            raise ConfigError(f"folds is {self.folds}; at least 2 was expected")
        if self.folds and (self.grid or self.seeds > 1):
            raise ConfigError("folds stand alone; a grid and seeds need a dev set: use --dev, or leave them out")

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return self.grid or self.seeds > 1 or self.folds > 0


@dataclass(frozen=True)
class AdaptSettings:
    """How a model reads the text of a field and of a task before it is fine-tuned."""

    domain_steps: int = 2000
    """Updates on the field's text."""
    task_steps: int = 300
    """Updates on the texts of the training rows."""
    adapt_rate: float = 1e-4
    """Peak learning rate of both."""
    adapt_batch: int = 32
    """Sequences an update of both."""
    adapt_length: int = 128
    """Tokens a sequence of both."""
    masking: Masking = "word"
    """What is chosen together: token, word, ngram, span."""
    held_out: float = 0.05
    """Share of the text's documents that is kept for measuring."""
    seeds: int = 3
    """Fine-tuning runs from each start."""
    overlap: Literal["refuse", "drop", "allow"] = "refuse"
    """If dev or test rows occur in the text: refuse it, drop the documents in which they do, or allow it."""

    def __post_init__(self) -> None:
        if self.masking in ("entity", "correction"):
            raise ConfigError(f"masking is {self.masking}; here it is token, word, ngram or span")
        SearchSettings(seeds=self.seeds)
        for steps in (self.domain_steps, self.task_steps):
            self.pretraining(steps, "auto")

    def pretraining(self, steps: int, precision: PrecisionName) -> PretrainSettings:
        """One of the readings: masked words alone, for a task's rows have no next sentences."""
        return PretrainSettings(
            steps=steps,
            batch=self.adapt_batch,
            length=self.adapt_length,
            rate=self.adapt_rate,
            masking=self.masking,
            objective="none",
            precision=precision,
        )
