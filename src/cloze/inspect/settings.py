"""What can be said about a survey of heads. Light to import: the command line reads it."""

from dataclasses import dataclass

from cloze.errors import ConfigError

# Fewer sequences say nothing about a corpus, and an interval over them would pretend that they do.
FEWEST_SEQUENCES = 8


@dataclass(frozen=True)
class HeadSettings:
    """How heads are scored and when a score is worth a label."""

    sequences: int = 256
    """Pairs of neighbouring sentences to look at."""
    length: int = 64
    """Tokens of a sequence; longer ones are cut."""
    shuffles: int = 400
    """Shuffled copies of each sequence that the null is measured on."""
    resamples: int = 1000
    """Times that the sequences are drawn anew for the intervals."""
    false_rate: float = 0.01
    """How often a survey of heads without any pattern may give one or more of them a label."""
    effect: float = 0.1
    """The share of attention beyond the null that a label takes at the least."""
    broad: float = 0.9
    """A head whose entropy is this share of the possible attends broadly."""
    related_share: float = 0.001
    """The share of pairs of different tokens, the closest by their vectors, that counts as related."""
    predictive_sequences: int = 32
    """Sequences on which the words that predict a word are measured, which takes a pass for every word or pair."""
    predictive_length: int = 40
    """Sequences that are not longer are taken for that."""
    predictive_top: int = 3
    """How many words count as those that predict a word."""
    examples: int = 2
    """Sequences that show each label of a head."""
    seed: int = 0
    """Decides everything random."""

    def __post_init__(self) -> None:
        for name, least in (
            ("sequences", FEWEST_SEQUENCES),
            ("length", 8),
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
        # Half of the shuffles settle how far the null spreads, the other half how far beyond that any of it goes.
        if self.false_rate * (self.shuffles // 2 + 1) < 1:
            raise ConfigError(
                f"shuffles is {self.shuffles}, too few for a false_rate of {self.false_rate}; "
                f"at least {2 * round(1 / self.false_rate)} were expected"
            )
