"""Model configuration: the hyperparameters of section 3 of the BERT paper, and named presets.

``checkpoint.config_file`` translates these field names to and from those of ``config.json``.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from cloze.errors import ConfigError, did_you_mean
from cloze.options import HeadPooling, PositionKind


@dataclass(frozen=True)
class BertConfig:
    """Hyperparameters of an encoder. Defaults are those of BERT-base, uncased."""

    smallest: ClassVar[dict[str, int]] = {}  # smallest values of sizes that may be less than 1

    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    feedforward_size: int = 3072
    positions: int = 512  # maximum input length
    segments: int = 2
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_epsilon: float = 1e-12
    initial_deviation: float = 0.02  # standard deviation of the truncated normal initialization
    pad_id: int = 0
    # ALBERT (Lan et al., 2020): factorized embeddings of this width (None: not factorized), and one layer whose weights
    # all layers share.
    embedding_size: int | None = None
    shared_layers: bool = False
    position_kind: PositionKind = "learned"
    # Input of a sequence or choice head: the summary token ([CLS]) through the pooler ("cls"), the mean of the token
    # states without a pooler ("mean"), or a comparison of two separately encoded texts ("separate").
    head_pooling: HeadPooling = "cls"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "layers",
            "heads",
            "feedforward_size",
            "positions",
            "segments",
            *(["embedding_size"] if self.embedding_size is not None else []),
        ):
            value = getattr(self, name)
            # The upper bound protects against damaged files: sizes are used before any tensor confirms them.
            least = self.smallest.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**24:
                raise ConfigError(f"{name} is {value!r}; expected a whole number from {least} to {2**24}")
        if not isinstance(self.pad_id, int) or isinstance(self.pad_id, bool) or not 0 <= self.pad_id < self.vocab_size:
            raise ConfigError(f"pad_id is {self.pad_id!r}; expected an id from 0 to {self.vocab_size - 1}")
        if self.hidden_size % self.heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by {self.heads} heads; choose a multiple of the "
                f"number of heads"
            )
        for name in ("dropout", "attention_dropout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise ConfigError(f"{name} is {value!r}; expected a fraction of at least 0 and below 1")
        for name in ("norm_epsilon", "initial_deviation"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < 1:
                raise ConfigError(f"{name} is {value!r}; expected a small positive number")
        if self.activation not in ACTIVATIONS:
            hint = did_you_mean(str(self.activation), ACTIVATIONS)  # values from a file may have any type, even numbers
            raise ConfigError(f"unknown activation {self.activation!r}{hint}")
        if self.head_pooling not in get_args(HeadPooling):
            raise ConfigError(f"head_pooling is {self.head_pooling!r}; expected 'cls', 'mean' or 'separate'")
        if self.position_kind not in get_args(PositionKind):
            raise ConfigError(
                f"position_kind is {self.position_kind!r}; expected {' or '.join(get_args(PositionKind))}"
            )
        self._check_sharing()

    def _check_sharing(self) -> None:
        if not isinstance(self.shared_layers, bool):
            raise ConfigError(f"shared_layers is {self.shared_layers!r}; expected true or false")
        if not self.shared_layers:
            return
        if self.embedding_size is None:
            # ALBERT checkpoints always have the projection from the embeddings.
            raise ConfigError(
                f"shared_layers requires embedding_size; set it, for example to the hidden size ({self.hidden_size})"
            )
        if self.layers > DEEPEST_SHARED:
            raise ConfigError(f"layers is {self.layers}; expected at most {DEEPEST_SHARED} shared layers")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads

    @property
    def has_distances(self) -> bool:
        """Whether attention depends on the distance of two tokens instead of on their absolute positions."""
        return self.position_kind.startswith("relative")

    @property
    def distance_products(self) -> int:
        """Number of terms of the attention scores that depend on distances."""
        return ("relative_key", "relative_key_query").index(self.position_kind) + 1 if self.has_distances else 0

    @property
    def two_streams(self) -> bool:
        """Whether pre-training has a second stream of states at the predicted words (XLNet)."""
        return False

    @property
    def pooler_activation(self) -> str:
        """Activation of the pooler: tanh, or gelu in some other architectures."""
        return "tanh"

    @property
    def table_width(self) -> int:
        """Width of the token, segment and position embeddings."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def distinct_layers(self) -> int:
        """Number of layers that have their own parameters: 1 if the layers are shared."""
        return 1 if self.shared_layers else self.layers


# Upper bound for the number of shared layers, which no tensor in a checkpoint confirms.
DEEPEST_SHARED = 256

# "gelu" is the exact form, x * Phi(x), of the original code; the other GELU names are the tanh approximation.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")

# The paper's 0.02 belongs to a hidden size of 768. With it, projections in narrower models are so small that attention
# stays nearly uniform for thousands of steps. Scaling by sqrt(768 / H) keeps the projections at the same magnitude and
# shortens this plateau (benchmarks/small_start.py).
_PAPER_DEVIATION, _PAPER_WIDTH = 0.02, 768

# (layers, hidden size). As in the paper, heads are 64 wide and the feed-forward size is four times the hidden size.
_HEAD_WIDTH = 64
_SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


def preset(
    name: str,
    vocab_size: int = BertConfig.vocab_size,
    *,
    layers: int | None = None,
    hidden_size: int | None = None,
    heads: int | None = None,
    **changes: int | float | str | None,
) -> BertConfig:
    """Return the configuration with this name, for a vocabulary of this size.

    Args:
        name: The name of the preset.
        vocab_size: Number of entries of the vocabulary.
        layers: Another number of layers.
        hidden_size: Another hidden size; heads, feed-forward size and initialization follow from it.
        heads: Another number of attention heads.
        changes: Other fields of the configuration.
    """
    if name not in _SIZES:
        raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, _SIZES)}")
    depth, width = _SIZES[name]
    hidden_size = width if hidden_size is None else hidden_size
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=depth if layers is None else layers,
        heads=max(1, hidden_size // _HEAD_WIDTH) if heads is None else heads,
        feedforward_size=4 * hidden_size,
        initial_deviation=max(_PAPER_DEVIATION, _PAPER_DEVIATION * (_PAPER_WIDTH / hidden_size) ** 0.5),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def generator_config(config: BertConfig, size: float) -> BertConfig:
    """Return the configuration of ELECTRA's generator: fewer heads of the same width, and the same embeddings.

    Args:
        config: The discriminator.
        size: Width of the generator, as a fraction of that of the discriminator.
    """
    heads = max(1, round(config.heads * size))
    return replace(
        config,
        hidden_size=heads * config.head_size,
        heads=heads,
        feedforward_size=max(1, config.feedforward_size * heads // config.heads),
        embedding_size=config.table_width,
    )


PRESETS = tuple(_SIZES)
