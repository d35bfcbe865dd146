"""What can be said about vocabularies, preparation, pairs and masks. Light to import: the command line reads it."""

from dataclasses import dataclass
from typing import Literal

from cloze.errors import ConfigError


@dataclass(frozen=True)
class VocabularySettings:
    """How a vocabulary is learned."""

    size: int = 30_000
    """Entries, the special ones included."""
    cased: bool = False
    """Keep capitals and accents."""
    minimum_frequency: int = 2
    """A pair of pieces seen less often is not merged."""
    layout: Literal["compact", "published"] = "compact"
    """compact: the five special tokens first; published: all of them where BERT's English vocabularies have them."""
    unused: int | None = None
    """Entries for words to be added later; 99 in the published layout, none in the compact one if left out."""
    workers: int | None = None
    """Processes that count words; one a core if left out. The result is the same."""

    def __post_init__(self) -> None:
        if self.size < 10:
            raise ConfigError(
                f"size is {self.size}; a vocabulary needs at least 10 entries, and thousands to be of use"
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; at least 1 was expected")
        if self.unused is not None and self.unused < 0:
            raise ConfigError(f"unused is {self.unused}; a number of entries was expected, 0 or more")


@dataclass(frozen=True)
class PrepareSettings:
    """How text becomes a corpus."""

    held_out: float = 0.01
    """Share of documents that training never sees."""
    seed: int = 0
    """Decides which documents are held out."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; a share from 0 up to, not including, 1 was expected")


@dataclass(frozen=True)
class PairSettings:
    """How segments are cut for next-sentence prediction."""

    length: int = 128
    # A few sequences are shorter than they might be, because those of the tasks will be.
    short_share: float = 0.1
    random_share: float = 0.5

    def __post_init__(self) -> None:
        if self.length < 8:
            raise ConfigError(f"length is {self.length}; a pair of segments needs at least 8 tokens")


@dataclass(frozen=True)
class MaskSettings:
    """The shares of the paper: 15 % chosen; of those 80 % hidden, 10 % replaced, 10 % left as they are."""

    rate: float = 0.15
    mix: tuple[float, float, float] = (0.8, 0.1, 0.1)

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"mask rate is {self.rate}; a share between 0 and 1 was expected")
        if len(self.mix) != 3 or min(self.mix) < 0 or not abs(sum(self.mix) - 1) <= 1e-6:
            raise ConfigError(f"mask mix is {self.mix}; three shares that add up to 1 were expected, as 0.8 0.1 0.1")
