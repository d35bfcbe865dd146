"""Analyse attention heads: patterns with null distributions, surveys over a corpus, pruning, and views as pages.

``HeadSettings`` is here because the command line loads it for ``--help``: this module imports nothing heavy.
"""

from dataclasses import dataclass

from cloze.errors import ConfigError

# An interval over fewer sequences would suggest more certainty about a corpus than there is.
FEWEST_SEQUENCES = 8


@dataclass(frozen=True)
class HeadSettings:
    """Settings for scoring and labelling attention heads."""

    sequences: int = 256
    """Number of sequences: pairs of neighbouring sentences."""
    max_length: int = 64
    """Maximum sequence length in tokens; longer sequences are truncated."""
    shuffles: int = 400
    """Number of shuffled copies of each sequence for estimating the null distribution."""
    resamples: int = 1000
    """Number of bootstrap resamples of the sequences for the intervals."""
    false_rate: float = 0.01
    """Family-wise error rate: probability of labelling at least one head if none follows a pattern."""
    effect: float = 0.1
    """Minimum fraction of attention above the null distribution for a label."""
    broad: float = 0.9
    """Minimum entropy of a broad head, as a fraction of the maximum entropy."""
    related_share: float = 0.001
    """Fraction of the pairs of different tokens, those with the closest embeddings, that count as related."""
    predictive_sequences: int = 32
    """Number of sequences for measuring predictive words, with one forward pass per word or pair of words."""
    predictive_length: int = 40
    """Maximum sequence length in tokens for measuring predictive words."""
    predictive_top: int = 3
    """Number of words that count as predictive of a word."""
    examples: int = 2
    """Number of example sequences per label of a head."""
    seed: int = 0
    """Random seed for the survey."""

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
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")
        for name in ("false_rate", "effect", "broad", "related_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a fraction between 0 and 1")
        # One half of the shuffles gives the null's mean and deviation, the other half its threshold.
        if self.false_rate * (self.shuffles // 2 + 1) < 1:
            raise ConfigError(
                f"shuffles is {self.shuffles}, too few for a false_rate of {self.false_rate}; "
                f"expected at least {2 * round(1 / self.false_rate)}"
            )
