"""What can be said about contrastive training, besides what fine-tuning knows. Light to import.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass, fields

from cloze.errors import ConfigError


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
    for field in fields(similarity):
        value = getattr(similarity, field.name)
        if task.lower() != "similarity" and value != field.default:
            raise ConfigError(f"{field.name} is {value!r}, which is for similarity; leave it out")
