"""Settings of training text vectors and cross-encoders: similarity, retrieval and rerank.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from cloze.errors import ConfigError, did_you_mean, format_option
from cloze.tasks.retrieval.kind import RERANK_NAME, RETRIEVAL_NAME
from cloze.train.finetuning.settings import SimilaritySettings

# The objectives of each task; the first one is the default of retrieval and rerank. Similarity chooses by its rows.
OBJECTIVES: Mapping[str, tuple[str, ...]] = {
    "similarity": ("contrastive", "cosent", "cosine"),
    RETRIEVAL_NAME: ("contrastive", "margin-mse"),
    RERANK_NAME: ("listwise", "pairwise", "pointwise"),
}


@dataclass(frozen=True)
class RankingSettings(SimilaritySettings):
    """Additional settings of training for similarity, retrieval and reranking."""

    negatives: int | None = None
    """For retrieval and rerank: number of the row's negatives per step, drawn anew in every epoch; by default 1 for
    retrieval, which also uses the passages of other rows, and 4 for rerank."""
    symmetric: bool = False
    """For retrieval: each passage must also identify its query."""
    dimensions: str | None = None
    """For retrieval: also train the first values of the vectors, such as 256,128,64; embed --dimensions cuts to these
    sizes."""
    query_prompt: str | None = None
    """For retrieval: a prefix for queries, such as 'query: ', which is saved with the model; by default, the model's
    own."""
    document_prompt: str | None = None
    """For retrieval: a prefix for passages, such as 'passage: '."""
    chunk_tokens: int | None = None
    """For retrieval: tokens that are encoded at once; a larger batch costs time (gradient caching), but no memory. By
    default, as many as take about 2 GB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("negatives", 0), ("chunk_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        _ = self.sizes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of ``dimensions``, largest first."""
        words = [] if self.dimensions is None else self.dimensions.split(",")
        if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
            raise ConfigError(f"dimensions is {self.dimensions!r}; expected numbers separated by commas, as in 256,128")
        return tuple(sorted({int(word) for word in words}, reverse=True))


# The settings that each task has.
SETTINGS_OF: Mapping[str, tuple[str, ...]] = {
    "similarity": tuple(field.name for field in fields(SimilaritySettings)),
    RETRIEVAL_NAME: tuple(field.name for field in fields(RankingSettings)),
    RERANK_NAME: ("objective", "negatives"),
}


def check_ranking_settings(task: str, settings: SimilaritySettings) -> None:
    """Refuse settings of training for similarity, retrieval or rerank that the task would ignore."""
    name = task.lower()
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name not in SETTINGS_OF.get(name, ()):
            tasks = " and ".join(one for one, names in SETTINGS_OF.items() if field.name in names)
            raise ConfigError(f"{field.name} is {value!r}, which only applies to {tasks}; leave it out")
    known = OBJECTIVES.get(name, ())
    if settings.objective is not None and settings.objective not in known:
        raise ConfigError(
            f"{format_option('objective')} is {settings.objective!r}, which is not one of {name}"
            f"{did_you_mean(settings.objective, known)}"
        )
