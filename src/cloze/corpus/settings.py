"""Settings of vocabularies, preparation, examples and masking.

Imports nothing heavy: the CLI loads this for ``--help``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cloze.errors import ConfigError, did_you_mean
from cloze.options import Prediction, check_types

Objective = Literal["nsp", "sop", "relation", "copy", "none"]
Masking = Literal["token", "word", "ngram", "span", "entity", "correction"]


# Upper bound for the length of a sequence in tokens, far beyond what is practical with full attention.
LONGEST = 32_768
SHORTEST = 8  # a pair of segments with their special tokens


@dataclass(frozen=True)
class VocabularySettings:
    """Settings of ``train_vocabulary``. Each attribute is also a command-line option.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> import cloze
        >>> cloze.VocabularySettings(size=8_000, cased=True).strip_accents
        False
    """

    size: int = 30_000
    """Number of entries, including special tokens."""
    cased: bool = False
    """Keep capitals and accents."""
    keep_accents: bool = False
    """Lowercase, but keep accents and vowel signs (combining marks), as needed for Hindi, Thai or Vietnamese."""
    minimum_frequency: int = 2
    """Minimum number of occurrences of a pair of pieces to be merged."""
    layout: Literal["compact", "published"] = "compact"
    """Positions of the special tokens: compact (the first five) or published (as in BERT's English vocabularies)."""
    unused: int | None = None
    """Number of unused entries for words added later; by default 99 in the published layout, else none."""
    workers: int | None = None
    """Number of worker processes; by default, one per core. It does not affect the result."""
    text: str = "text"
    """The column with the texts in JSONL and Parquet files."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """On a malformed row of JSONL or Parquet: stop, or skip it. Plain text that is not UTF-8 is always an error."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.size < 10:
            raise ConfigError(
                f"size is {self.size}; a vocabulary needs at least 10 entries, and thousands to be useful"
            )
        if self.cased and self.keep_accents:
            raise ConfigError("cased and keep_accents are both set, but cased keeps accents anyway; use one of the two")
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; expected at least 1")
        if self.unused is not None and self.unused < 0:
            raise ConfigError(f"unused is {self.unused}; expected a number of entries, 0 or more")

    @property
    def strip_accents(self) -> bool:
        """Whether accents are stripped."""
        return not (self.cased or self.keep_accents)


@dataclass(frozen=True)
class PrepareSettings:
    """Settings of ``prepare``. Each attribute is also a command-line option.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> import cloze
        >>> cloze.PrepareSettings(duplicates="near").held_out
        0.01
    """

    held_out: float = 0.01
    """Fraction of the documents that is held out from training."""
    seed: int = 0
    """Random seed for choosing the held-out documents."""
    text: str = "text"
    """The column with the texts in JSONL and Parquet files."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """On a malformed row of JSONL or Parquet: stop, or skip and count it. Text that is not UTF-8 is always an error."""
    words: Path | None = None
    """File of Chinese words, one per line, to add to the segmenter's dictionary."""
    lines: Literal["paragraphs", "sentences"] = "paragraphs"
    """Content of a line: paragraphs (which are split into sentences) or sentences."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Duplicate documents: keep them, drop exact copies (ignoring case and spaces), or drop near-duplicates too."""
    shard_size: float = 32.0
    """Approximate megabytes of text per shard, the unit of work that is repeated if a worker fails."""

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; expected a fraction of at least 0 and below 1")
        if not 0 < self.shard_size <= 1024:
            raise ConfigError(f"shard_size is {self.shard_size}; expected more than 0 and at most 1024 megabytes")


@dataclass(frozen=True)
class EngineSettings:
    """Where preparation runs. The result does not depend on it."""

    engine: Literal["local", "slurm", "ray"] = "local"
    """local: processes on this machine; slurm or ray: cluster jobs (requires the extra cloze-bert[cluster])."""
    workers: int | None = None
    """Processes, or concurrent cluster jobs (default: one per core, or as many as the cluster allows)."""
    partition: str | None = None
    """Slurm partition for the jobs."""
    time: str = "04:00:00"
    """Slurm time limit per job; a job prepares one shard."""
    memory: int = 4
    """Gigabytes of memory per cluster job."""
    sbatch: tuple[str, ...] = ()
    """Additional options for Slurm's sbatch, each as name=value, for example account=physics."""
    address: str | None = None
    """Address of the Ray cluster (default: the cluster of this machine, or a new local one)."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; expected at least 1")
        if self.memory < 1:
            raise ConfigError(f"memory is {self.memory}; expected at least 1 gigabyte")
        if self.engine == "slurm" and not self.partition:
            raise ConfigError("engine is slurm, but partition is missing; 'sinfo' lists the partitions of the cluster")
        for value in self.sbatch:
            if not value.partition("=")[0] or "=" not in value:
                raise ConfigError(f"sbatch is {value!r}; expected name=value, as in account=physics")


@dataclass(frozen=True)
class ExampleSettings:
    """Settings of pre-training examples."""

    objective: Objective = "nsp"
    """nsp: does B follow A; sop: are A and B in order; relation: does B follow A, or is it from elsewhere in the
    document or from another one; copy: B is A with words dropped and moved; none: whole sentences, without pairs."""
    max_length: int = 128
    # Fraction of shorter sequences, to resemble those of fine-tuning (short_seq_prob in the original code).
    short_share: float = 0.1
    random_share: float = 0.5
    """Fraction of wrong pairs: random pairs for nsp, swapped pairs for sop."""
    drop_share: float = 0.15
    """For copy: fraction of the words that are dropped from B."""
    move_distance: int = 3
    """For copy: largest distance in words by which a word is moved; half of the copies keep the order of words."""

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ConfigError(f"objective is {self.objective!r}{did_you_mean(self.objective, get_args(Objective))}")
        if self.max_length < SHORTEST:
            raise ConfigError(f"max_length is {self.max_length}; a pair of segments needs at least {SHORTEST} tokens")
        if self.max_length > LONGEST:
            raise ConfigError(f"max_length is {self.max_length}; expected at most {LONGEST:,} tokens")
        if self.move_distance < 0:
            raise ConfigError(f"move_distance is {self.move_distance}; expected a number of words, or 0 for none")
        for name in ("short_share", "random_share", "drop_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a fraction from 0 to 1")


@dataclass(frozen=True)
class MaskSettings:
    """Unit and proportions of masking.

    By default 15 % of tokens are selected, of which 80 % are masked, 10 % replaced with a random token and 10 % left
    unchanged. With correction masking, the first 80 % get a similar word instead of ``[MASK]``.
    """

    masking: Masking = "token"
    """token, word, ngram (of words), span (of words), entity (then words) or correction (similar words, as ngram)."""
    rate: float = 0.15
    mix: tuple[float, float, float] = (0.8, 0.1, 0.1)
    ngrams: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)
    """Probabilities of n-grams of one word, two words and so on (Cui et al. 2020, section 3.1)."""
    geometric: float = 0.2
    """Probability that a span ends after each of its words (Joshi et al. 2020, section 3.1)."""
    longest: int = 10
    """Maximum number of words in a span."""
    predicts: Prediction = "masked"
    """masked: tokens selected as described here; next: nothing is masked, and every token predicts the next one."""

    def __post_init__(self) -> None:
        if self.masking not in get_args(Masking):
            raise ConfigError(f"masking is {self.masking!r}{did_you_mean(self.masking, get_args(Masking))}")
        if not 0 < self.rate < 1:
            raise ConfigError(f"mask rate is {self.rate}; expected a fraction between 0 and 1")
        if len(self.mix) != 3 or not _are_shares(self.mix):
            raise ConfigError(f"mask mix is {self.mix}; expected three fractions that add up to 1, such as 0.8 0.1 0.1")
        if not _are_shares(self.ngrams):
            raise ConfigError(f"ngrams is {self.ngrams}; expected fractions that add up to 1, such as 0.4 0.3 0.2 0.1")
        if not 0 < self.geometric < 1:
            raise ConfigError(f"geometric is {self.geometric}; expected a probability between 0 and 1, such as 0.2")
        if self.longest < 1:
            raise ConfigError(f"longest is {self.longest}; expected at least 1 word")

    @property
    def run_shares(self) -> tuple[float, ...]:
        """The probabilities of selecting 1 word, 2 words, ... together."""
        if self.masking in ("ngram", "correction"):
            return self.ngrams
        if self.masking == "span":
            chances = [self.geometric * (1 - self.geometric) ** number for number in range(self.longest)]
            return tuple(chance / sum(chances) for chance in chances)
        return (1.0,)


@dataclass(frozen=True)
class Phase:
    """A part of a pre-training run with one sequence length and batch size.

    Attributes:
        max_length: Maximum sequence length in tokens.
        batch_size: Sequences per optimizer step.
        share: Share of the training, by steps or by the clock.
    """

    max_length: int
    batch_size: int
    share: float

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step, at most."""
        return self.max_length * self.batch_size


_PHASE = re.compile(r"(\d+)x(\d+):(\d*\.?\d+)")


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Parse phases such as ``32x128:0.2,128x64:0.8``.

    Raises:
        ConfigError: If a phase cannot be read, or the shares do not add up to 1.
    """
    phases = []
    for part in text.split(","):
        found = _PHASE.fullmatch(part.strip())
        if found is None or int(found[2]) < 1:
            raise ConfigError(f"phases: {part.strip()!r} is not valid; expected LENGTHxBATCH:SHARE, such as 128x64:0.8")
        phases.append(Phase(int(found[1]), int(found[2]), float(found[3])))
    check_shares("phases", text, [phase.share for phase in phases])
    return tuple(phases)


def parse_mixture(text: str) -> dict[Objective, float]:
    """Parse shares of objectives such as ``none:0.5,relation:0.3,copy:0.2``.

    Raises:
        ConfigError: If an objective is unknown or named twice, or the shares do not add up to 1.
    """
    names: tuple[Objective, ...] = get_args(Objective)
    shares: dict[Objective, float] = {}
    for part in text.split(","):
        name, _, share = part.strip().partition(":")
        if name not in names:
            raise ConfigError(f"mixture: unknown objective {name!r}{did_you_mean(name, names)}; {', '.join(names)}")
        if name in shares:
            raise ConfigError(f"mixture: {name} is named twice in {text!r}")
        if not re.fullmatch(r"\d*\.?\d+", share):
            raise ConfigError(f"mixture: {part.strip()!r} is not valid; expected OBJECTIVE:SHARE, such as nsp:0.3")
        shares[names[names.index(name)]] = float(share)
    check_shares("mixture", text, list(shares.values()))
    return shares


def check_shares(name: str, text: str, shares: Sequence[float]) -> None:
    """Raise ``ConfigError`` for shares that are not positive or do not add up to 1."""
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(
            f"{name}: the shares in {text!r} add up to {sum(shares):g}; expected positive shares that add up to 1"
        )


def check_seed(seed: int) -> None:
    """Raise ``ConfigError`` for a seed that is out of range; NumPy rejects negative seeds."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed}; expected a whole number of at least 0 and below 2**32")


def _are_shares(values: tuple[float, ...]) -> bool:
    return len(values) > 0 and min(values) >= 0 and abs(sum(values) - 1) <= 1e-6
