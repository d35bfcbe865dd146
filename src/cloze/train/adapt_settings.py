"""What ``cloze adapt`` can be told. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass
from typing import Literal

from cloze.corpus.settings import Masking
from cloze.errors import ConfigError
from cloze.train.search_settings import SearchSettings
from cloze.train.settings import PrecisionName, PretrainSettings


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
