"""Settings of a survey of attention heads. Imports nothing heavy: the CLI loads this for ``--help``."""

from dataclasses import dataclass

from cloze.errors import ConfigError

# An interval over fewer sequences would suggest more certainty about a corpus than there is.
FEWEST_SEQUENCES = 8


@dataclass(frozen=True)
class HeadSettings:
    """How heads are scored, and when a score earns a label."""

    sequences: int = 256
    """Number of sequences: pairs of neighbouring sentences."""
    max_length: int = 64
    """Maximum tokens per sequence; longer ones are truncated."""
    shuffles: int = 400
    """Shuffled copies of each sequence, from which the null distribution is estimated."""
    resamples: int = 1000
    """Bootstrap resamples of the sequences for the intervals."""
    false_rate: float = 0.01
    """Family-wise error rate: how often a survey of heads without any pattern may label at least one of them."""
    effect: float = 0.1
    """Minimum share of attention beyond the null for a label."""
    broad: float = 0.9
    """Share of the maximum entropy from which a head counts as broad."""
    related_share: float = 0.001
    """Share of the pairs of different tokens, closest by embedding, that count as related."""
    predictive_sequences: int = 32
    """Sequences on which predictive words are measured; this takes a forward pass per word or pair of words."""
    predictive_length: int = 40
    """Maximum tokens of a sequence that is used to measure predictive words."""
    predictive_top: int = 3
    """Number of words that count as predictive of a word."""
    examples: int = 2
    """Example sequences per label of a head."""
    seed: int = 0
    """Random seed of the survey."""

    def __post_init__(self) -> None:
        for name, least in (
            ("sequences", FEWEST_SEQUENCES),
            ("max_length", 8),
            ("shuffles", 4),
            ("resamples", 100),
            ("predictive_sequences", 0),
            ("predictive_length", 8),
            ("predictive_top", 1),
            ("examples", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; at least {least} was expected")
        for name in ("false_rate", "effect", "broad", "related_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; a share between 0 and 1 was expected")
        # One half of the shuffles gives the null's mean and deviation, the other half its threshold.
        if self.false_rate * (self.shuffles // 2 + 1) < 1:
            raise ConfigError(
                f"shuffles is {self.shuffles}, too few for a false_rate of {self.false_rate}; "
                f"at least {2 * round(1 / self.false_rate)} were expected"
            )
