"""Settings of vocabularies, preparation, examples and masking. Light to import: the CLI loads this for `--help`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cloze.errors import ConfigError, did_you_mean
from cloze.options import check_types

Objective = Literal["nsp", "sop", "relation", "copy", "none"]
Masking = Literal["token", "word", "ngram", "span", "entity", "correction"]


# Maximum number of tokens of a sequence, far beyond what attention can afford.
LONGEST = 32_768
SHORTEST = 8  # a pair of segments with their special tokens


@dataclass(frozen=True)
class VocabularySettings:
    """Settings of vocabulary learning."""

    size: int = 30_000
    """Entries, the special ones included."""
    cased: bool = False
    """Keep capitals and accents."""
    keep_accents: bool = False
    """Lowercase, but keep accents and vowel signs (combining marks), as Hindi, Thai or Vietnamese needs."""
    minimum_frequency: int = 2
    """A pair of pieces seen less often is not merged."""
    layout: Literal["compact", "published"] = "compact"
    """compact: the five special tokens first; published: all of them where BERT's English vocabularies have them."""
    unused: int | None = None
    """Entries for words to be added later; 99 in the published layout, none in the compact one if left out."""
    workers: int | None = None
    """Processes that count words; one per core if left out. The result is the same."""
    text: str = "text"
    """The column with the texts, in JSONL and Parquet files."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """A row of JSONL or Parquet that cannot be read: stop, or pass over it; plain text that is not UTF-8 stops."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.size < 10:
            raise ConfigError(
                f"size is {self.size}; a vocabulary needs at least 10 entries, and thousands to be of use"
            )
        if self.cased and self.keep_accents:
            raise ConfigError("cased and keep_accents are both set, but cased keeps accents anyway; use one of the two")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; at least 1 was expected")
        if self.unused is not None and self.unused < 0:
            raise ConfigError(f"unused is {self.unused}; a number of entries was expected, 0 or more")

    @property
    def strip_accents(self) -> bool:
        """Whether accents are dropped."""
        return not (self.cased or self.keep_accents)


@dataclass(frozen=True)
class PrepareSettings:
    """Settings of corpus preparation."""

    held_out: float = 0.01
    """Share of documents that training never sees."""
    seed: int = 0
    """Decides which documents are held out."""
    text: str = "text"
    """The column with the texts, in JSONL and Parquet files."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """A row of JSONL or Parquet that cannot be read: stop, or skip and count; plain text that is not UTF-8 stops."""
    words: Path | None = None
    """A file of Chinese words, one per line, to be added to the segmenter's dictionary."""
    lines: Literal["paragraphs", "sentences"] = "paragraphs"
    """What a line holds: paragraphs are split into sentences; sentences are left as they are."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """keep; exact: drop repeated documents, ignoring case and spaces; near: drop near-duplicates, too."""
    shard_size: float = 32.0
    """Megabytes of text in a shard, about: the work that is lost with a worker; of Parquet, a row group at least."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; a share from 0 up to, not including, 1 was expected")
        if not 0 < self.shard_size <= 1024:
            raise ConfigError(f"shard_size is {self.shard_size}; megabytes above 0, up to 1024, were expected")


@dataclass(frozen=True)
class EngineSettings:
    """Where preparation runs; the result is the same everywhere."""

    engine: Literal["local", "slurm", "ray"] = "local"
    """local: processes of this machine; slurm or ray: the jobs of a cluster, with the extra cloze-bert[cluster]."""
    workers: int | None = None
    """Processes, or jobs at once; if left out, one per core, or as many as the cluster gives."""
    partition: str | None = None
    """The partition that Slurm runs the jobs in."""
    time: str = "04:00:00"
    """The time that Slurm gives to a job, which makes one shard."""
    memory: int = 4
    """Gigabytes for each job of a cluster."""
    sbatch: tuple[str, ...] = ()
    """More for Slurm's sbatch, each as name=value: account=physics."""
    address: str | None = None
    """The Ray cluster; the one that this machine belongs to, or one made here, if left out."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; at least 1 was expected")
        if self.memory < 1:
            raise ConfigError(f"memory is {self.memory}; at least 1 gigabyte was expected")
        if self.engine == "slurm" and not self.partition:
            raise ConfigError("engine is slurm, but partition is missing; 'sinfo' lists those of the cluster")
        for value in self.sbatch:
            if not value.partition("=")[0] or "=" not in value:
                raise ConfigError(f"sbatch is {value!r}; name=value was expected, as in account=physics")


@dataclass(frozen=True)
class ExampleSettings:
    """Settings of pre-training examples."""

    objective: Objective = "nsp"
    """nsp: is B what follows A; sop: are A and B in order; relation: does B follow A, or is it from elsewhere in the
    document, or from another one; copy: B is A with words dropped or moved; none: whole sentences."""
    max_length: int = 128
    # Share of shorter sequences, to match those of fine-tuning (the published code's short_seq_prob).
    short_share: float = 0.1
    random_share: float = 0.5
    """Share of wrong pairs: random ones for nsp, swapped ones for sop."""
    drop_share: float = 0.15
    """For copy: share of words that are dropped from the copy."""
    move_distance: int = 3
    """For copy: places by which a word moves at most; half of the copies have their words in order."""

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ConfigError(f"objective is {self.objective!r}{did_you_mean(self.objective, get_args(Objective))}")
        if self.max_length < SHORTEST:
            raise ConfigError(f"max_length is {self.max_length}; a pair of segments needs at least {SHORTEST} tokens")
        if self.max_length > LONGEST:
            raise ConfigError(f"max_length is {self.max_length}; at most {LONGEST:,} tokens were expected")
        if self.move_distance < 0:
            raise ConfigError(f"move_distance is {self.move_distance}; a number of words was expected, 0 for none")
        for name in ("short_share", "random_share", "drop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; a share from 0 to 1 was expected")


@dataclass(frozen=True)
class MaskSettings:
    """Masking unit and shares; by default 15 % are selected, of which 80 % are masked, 10 % replaced and 10 % kept.

    For correction the first share gets a similar word instead of ``[MASK]``.
    """

    masking: Masking = "token"
    """token, word, ngram (whole words), span (of whole words), entity (then words) or correction (as ngram)."""
    rate: float = 0.15
    mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    ngrams: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)
    """Shares of n-grams of one word, two and so on (Cui et al. 2020, section 3.1)."""
    geometric: float = 0.2
    """Chance that a span ends after any of its words (Joshi et al. 2020, section 3.1)."""
    longest: int = 10
    """Words of the longest span."""

    def __post_init__(self) -> None:
        if self.masking not in get_args(Masking):
            raise ConfigError(f"masking is {self.masking!r}{did_you_mean(self.masking, get_args(Masking))}")
        if not 0 < self.rate < 1:
            raise ConfigError(f"mask rate is {self.rate}; a share between 0 and 1 was expected")
        if len(self.mix) != 3 or not _are_shares(self.mix):
            raise ConfigError(f"mask mix is {self.mix}; three shares that add up to 1 were expected, as 0.8 0.1 0.1")
        if not _are_shares(self.ngrams):
            raise ConfigError(f"ngrams is {self.ngrams}; shares that add up to 1 were expected, as 0.4 0.3 0.2 0.1")
        if not 0 < self.geometric < 1:
            raise ConfigError(f"geometric is {self.geometric}; a chance between 0 and 1 was expected, as 0.2")
        if self.longest < 1:
            raise ConfigError(f"longest is {self.longest}; at least 1 word was expected")

    @property
    def run_shares(self) -> tuple[float, ...]:
        """Return the probabilities of selecting 1 word, 2 words, ... together."""
        if self.masking in ("ngram", "correction"):
            return self.ngrams
        if self.masking == "span":
            chances = [self.geometric * (1 - self.geometric) ** number for number in range(self.longest)]
            return tuple(chance / sum(chances) for chance in chances)
        return (1.0,)


def check_seed(seed: int) -> None:
    """Raise an error for a seed out of range; NumPy rejects negative seeds."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed}; a whole number from 0 up to 2**32 was expected")


def _are_shares(values: tuple[float, ...]) -> bool:
    return len(values) > 0 and min(values) >= 0 and abs(sum(values) - 1) <= 1e-6
