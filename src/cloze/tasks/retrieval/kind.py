"""The kind ``retrieval``: queries, documents and relevance judgements to evaluate with, and pairs to train on.

A model ranks the documents for each query by the similarity of their vectors. ``examples`` reads these types from
tables and folders, ``metrics`` scores rankings. Imports nothing heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from cloze.errors import ConfigError, DataError
from cloze.options import check_types
from cloze.tasks.kind import TaskKind

RETRIEVAL_NAME, RERANK_NAME = "retrieval", "rerank"

RETRIEVAL = TaskKind(
    name=RETRIEVAL_NAME,
    summary="Train text vectors that find the passages which answer a query.",
    operation="embed",
    metrics=("ndcg@10", "mrr@10", "recall@10", "recall@100", "precision@10", "map@100"),
    columns=("text", "pair", "label"),
    labelled=False,
    settings=frozenset({"adapter", "adapter_size"}),
    unlabelled_note="retrieval has no labels to predict; it is only for cloze finetune (one run) and cloze evaluate",
)

RERANK = TaskKind(
    name=RERANK_NAME,
    summary="Train a cross-encoder, which reads a query and a passage together, to sort the results of a search.",
    operation="rerank",
    head="sequence",
    targets="number",
    metrics=RETRIEVAL.metrics,
    columns=("text", "pair", "label"),
    labelled=False,
    settings=frozenset({"adapter", "adapter_size"}),
    unlabelled_note="rerank has no labels to predict; it is only for cloze finetune (one run) and cloze rerank",
    # As transformers names a single output, which is all that its configuration can say.
    problem_type="regression",
    answers="the relevance of a passage to a query",
)


@dataclass(frozen=True)
class RetrievalSettings:
    """Settings of the evaluation of retrieval. The docstring of a field is also the help text of its flag."""

    compare_with: str | None = None
    """For retrieval: another model, or a run file of another search engine in the format of TREC, to compare with."""
    reranker: str | None = None
    """For retrieval: a cross-encoder that sorts the first results of the model."""
    rerank_top: int = 20
    """For retrieval: number of results per query that the reranker sorts."""
    documents: Path | None = None
    """For retrieval: a table with more documents to search, with a column text."""
    metrics: str = ",".join(RETRIEVAL.metrics)
    """For retrieval: ndcg@k, mrr@k, recall@k, precision@k and map@k, separated by commas; the first is the main one."""
    query_prompt: str = "query"
    """For retrieval: text to put in front of queries; query for the prompt of the model's folder."""
    document_prompt: str = "document"
    """For retrieval: text to put in front of documents; document for the prompt of the model's folder."""

    def __post_init__(self) -> None:
        if self.rerank_top < 1:
            raise ConfigError(f"rerank_top is {self.rerank_top}; expected at least 1")
        if self.rerank_top != RetrievalSettings.rerank_top and self.reranker is None:
            raise ConfigError(f"rerank_top is {self.rerank_top}, but there is no reranker; name one, or leave it out")


@dataclass(frozen=True)
class MiningSettings:
    """Settings of mining hard negatives. The docstring of a field is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range, or the depth leaves too few candidates.

    Example:
        >>> cloze.MiningSettings(negatives=7, relative_margin=0.1).depth
        100
    """

    negatives: int = 5
    """Number of negatives per pair."""
    depth: int = 100
    """Number of nearest passages per query that are candidates."""
    skip: int = 0
    """Number of the best remaining candidates to leave out, which may be answers that nobody labelled."""
    margin: float = 0.0
    """Leave out candidates whose score is less than this below that of the positive."""
    relative_margin: float = 0.05
    """Leave out candidates whose score is above the positive's, less this fraction of it: probable false negatives."""
    sampling: Literal["top", "random"] = "top"
    """Take the best remaining candidates, or random ones of them."""
    seed: int = 0
    """Seed of the random candidates."""

    def __post_init__(self) -> None:
        check_types(self)
        for name, least in (("negatives", 1), ("depth", 1), ("skip", 0), ("margin", 0), ("relative_margin", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.negatives + self.skip > self.depth:
            raise ConfigError(
                f"depth is {self.depth}, which leaves fewer than {self.negatives} candidates after skipping "
                f"{self.skip}; expected at least {self.negatives + self.skip}"
            )


Qrels = dict[str, dict[str, int]]
"""Relevance judgements: query id -> document id -> relevance; 0 or less is judged not relevant."""
Run = dict[str, dict[str, float]]
"""The results of a search: query id -> document id -> score, higher is better."""


@dataclass(frozen=True)
class RetrievalData:
    """Queries, the documents to search, and which documents are relevant.

    Attributes:
        queries: Query id -> text.
        documents: Document id -> text; the title, if there is one, is the beginning of the text.
        qrels: Query id -> document id -> relevance; above 0 is relevant.
        skipped: Number of rows that could not be used.
        split: The split of the judgements, such as ``test``; None if there is only one.

    Example:
        >>> data = cloze.RetrievalData({"q": "who?"}, {"a": "She.", "b": "There."}, {"q": {"a": 1}})
        >>> data.answerable
        ['q']
    """

    queries: dict[str, str]
    documents: dict[str, str]
    qrels: Qrels
    skipped: int = 0
    split: str | None = None

    @cached_property
    def answerable(self) -> list[str]:
        """The ids of the queries with at least one relevant document, in the order of the queries."""
        return [query for query in self.queries if any(grade > 0 for grade in self.qrels.get(query, {}).values())]

    @property
    def unanswerable(self) -> int:
        """The number of queries without a relevant document; they have no score."""
        return len(self.queries) - len(self.answerable)

    def relevant(self, query: str) -> list[str]:
        """Return the ids of the relevant documents of a query, the most relevant first."""
        grades = self.qrels.get(query, {})
        return sorted((document for document, grade in grades.items() if grade > 0), key=lambda one: -grades[one])

    def pairs(self) -> "TrainingPairs":
        """Return a training row for each query and each of its relevant documents.

        Documents that were judged not relevant to the query become its negatives.
        """
        queries, positives, negatives, places = [], [], [], []
        for query in self.answerable:
            wrong = tuple(self.documents[one] for one, grade in self.qrels[query].items() if grade <= 0)
            for document in self.relevant(query):
                queries.append(self.queries[query])
                positives.append(self.documents[document])
                negatives.append(wrong)
                places.append(f"query {query}, document {document}")
        return TrainingPairs(queries, positives, negatives, None, places, self.skipped)


@dataclass(frozen=True)
class TrainingPairs:
    """Training rows, as columns: a query, a passage that answers it, and any number of passages that do not.

    Attributes:
        queries: The query of each row; a query may have several rows.
        positives: A relevant passage for each.
        negatives: Passages that are not relevant; the tuples are empty if there are none.
        scores: Scores by a teacher: of the positive, then of each negative; None if there are none.
        places: The location of each row; by default, its number.
        skipped: Number of rows that could not be used.

    Raises:
        DataError: If the columns differ in length.

    Example:
        >>> pairs = cloze.TrainingPairs(["who?"], ["She."], [("There.",)])
        >>> len(pairs), pairs.relevant["who?"]
        (1, frozenset({'She.'}))
    """

    queries: list[str]
    positives: list[str]
    negatives: list[tuple[str, ...]]
    scores: list[tuple[float, ...]] | None = None
    places: list[str] = field(default_factory=list)
    skipped: int = 0

    def __post_init__(self) -> None:
        sizes = {len(self.queries), len(self.positives), len(self.negatives)}
        if len(sizes) > 1 or (self.scores is not None and len(self.scores) != len(self.queries)):
            raise DataError(f"{len(self.queries)} queries, but other columns differ in length; give one value per row")
        if len(self.places) != len(self.queries):
            object.__setattr__(self, "places", [f"row {number + 1}" for number in range(len(self.queries))])

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def relevant(self) -> dict[str, frozenset[str]]:
        """All relevant passages of each query: none of them may be used as a negative of that query."""
        found: dict[str, set[str]] = {}
        for query, positive in zip(self.queries, self.positives, strict=True):
            found.setdefault(query, set()).add(positive)
        return {query: frozenset(passages) for query, passages in found.items()}

    def select(self, indices: Sequence[int]) -> Self:
        """Return the rows at these indices, in that order."""
        queries, positives, places = (
            [column[index] for index in indices] if column else []
            for column in (self.queries, self.positives, self.places)
        )
        negatives = [self.negatives[index] for index in indices]
        scores = None if self.scores is None else [self.scores[index] for index in indices]
        return replace(self, queries=queries, positives=positives, negatives=negatives, scores=scores, places=places)

    def documents(self) -> list[list[str]]:
        """Return the texts of each row."""
        rows = zip(self.queries, self.positives, self.negatives, strict=True)
        return [[query, positive, *negatives] for query, positive, negatives in rows]

    def strata(self) -> None:
        """Return None: rows are split without stratification."""


def check_retrieval(data: RetrievalData, place: object) -> RetrievalData:
    """Return the data, or raise ``DataError`` if nothing can be searched, or if judgements name unknown documents."""
    for noun, texts in (("documents", data.documents), ("queries", data.queries)):
        if not texts:
            raise DataError(f"{place}: there are no {noun}; expected at least one")
        empty = next((key for key, text in texts.items() if not text.strip()), None)
        if empty is not None:
            raise DataError(f"{place}: the text of {noun} {empty!r} is empty; fill it in, or leave it out")
    for query, grades in data.qrels.items():
        if query not in data.queries:
            raise DataError(f"{place}: the judgements name the query {query!r}, which is not among the queries")
        if unknown := next((document for document in grades if document not in data.documents), None):
            raise DataError(f"{place}: query {query!r} names the document {unknown!r}, which is not in the corpus")
    if not data.answerable:
        raise DataError(f"{place}: none of the {len(data.queries)} queries has a relevant document; check the labels")
    return data
