"""Evaluate vectors by clustering: k-means on the vectors of labelled texts, compared with their labels.

The number of clusters is the number of labels. V-measure (Rosenberg and Hirschberg 2007) is 1 if every cluster has one
label and every label one cluster, and does not depend on how clusters are numbered. The adjusted Rand index (Hubert and
Arabie 1985) is 0 for random clusters. The baseline clusters TF-IDF vectors in the same way. The intervals resample the
rows of fixed clusters; with few rows they are too high, because a row that is drawn twice agrees with itself.

Dimensions: N rows, C labels, K clusters, S resamples, F features.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.predict.model import Model
from cloze.predict.retrieval import embed_unit
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import Baseline, baseline_scores, tfidf_vectors
from cloze.tasks.intervals import Floats, divide
from cloze.tasks.reports import Confusion, Evaluation
from cloze.tasks.rows import Source, read_rows

CLUSTERING_NAME = "clustering"
METRICS = ("v_measure", "ari")
# k-means of more rows uses random batches of them.
_MOST_ROWS = 20_000
_STARTS = 10
_SEED = 0
# TF-IDF vectors are reduced to this size, as in latent semantic analysis.
_LATENT = 100


@dataclass(frozen=True)
class ClusteredRows:
    """The label and the cluster of each row, as indices; computes the metrics of resampled rows."""

    labels: Sequence[int]
    clusters: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _cells(self) -> Any:
        """The cell of the contingency table of each row, (N, C K)."""
        from scipy.sparse import csr_array

        size = max(self.clusters) + 1
        cells = np.asarray(self.labels) * size + np.asarray(self.clusters)
        shape = (len(self), (max(self.labels) + 1) * size)
        return csr_array((np.ones(len(self)), (np.arange(len(self)), cells)), shape=shape)

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of each resample: (S, N) -> (S,)."""
        tables = np.asarray(counts @ self._cells).reshape(len(counts), -1, max(self.clusters) + 1)  # (S, C, K)
        return {"v_measure": v_measure(tables), "ari": adjusted_rand(tables)}

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return an empty dict: clusters have no labels of their own."""
        return {}


def v_measure(tables: Floats) -> Floats:
    """Return the harmonic mean of homogeneity and completeness of contingency tables: (S, C, K) -> (S,)."""
    of_labels, of_clusters = _entropy(tables.sum(2)), _entropy(tables.sum(1))
    mutual = of_labels + of_clusters - _entropy(tables.reshape(len(tables), -1))
    mutual[mutual < 1e-12] = 0.0
    # With a single label or a single cluster, that side cannot be wrong.
    homogeneity = np.where(of_labels > 0, divide(mutual, of_labels), 1.0)
    completeness = np.where(of_clusters > 0, divide(mutual, of_clusters), 1.0)
    return divide(2 * homogeneity * completeness, homogeneity + completeness)


def _entropy(counts: Floats) -> Floats:
    shares = counts / counts.sum(1, keepdims=True)
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(-(shares * logarithms).sum(1), np.float64)


def adjusted_rand(tables: Floats) -> Floats:
    """Return the adjusted Rand index of contingency tables: (S, C, K) -> (S,)."""
    together, labels, clusters, pairs = (
        (counts * (counts - 1) / 2).reshape(len(tables), -1).sum(1)
        for counts in (tables, tables.sum(2), tables.sum(1), tables.sum((1, 2)))
    )
    expected, largest = labels * clusters / pairs, (labels + clusters) / 2
    return np.where(largest > expected, divide(together - expected, largest - expected), 1.0)


def cluster(vectors: Any, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each row by k-means with a fixed seed: dense or sparse (N, D) -> (N,)."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    kind = KMeans if vectors.shape[0] <= _MOST_ROWS else MiniBatchKMeans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different vectors than clusters
        found = kind(clusters, n_init=_STARTS, random_state=_SEED).fit_predict(vectors)
    return np.asarray(found, np.int64)


def read_clustering(source: Source) -> tuple[list[str], list[str], list[str], int]:
    """Read the texts of a table, their labels and their locations, and the number of bad rows.

    Raises:
        DataError: If there are fewer than two labels.
    """
    path = source.rows_of("dev")
    rows = read_rows(
        path,
        text=source.text,
        label=source.label,
        on_bad_row=source.on_bad_row or "stop",
        header=source.header(path),
    )
    found = [(row.text, row.label or "", row.place) for row in rows]
    texts, labels, places = ([row[part] for row in found] for part in range(3))
    if len(set(labels)) < 2:
        raise DataError(f"{path}: all {len(labels)} rows have the label {labels[0]!r}; expected at least two labels")
    return texts, labels, places, rows.skipped


def evaluate_clustering(model: Model, source: Source, progress: Progress | None = None) -> Evaluation:
    """Cluster the vectors of labelled texts and compare the clusters with the labels.

    Args:
        model: The model.
        source: A table with texts and labels.
        progress: Receives the number of embedded texts.

    Returns:
        The metrics, compared with those of TF-IDF vectors. The prediction of a row is the most frequent label of its
        cluster.
    """
    texts, labels, places, skipped = read_clustering(source)
    names = sorted(set(labels))
    targets = [names.index(label) for label in labels]
    vectors = embed_unit(model, texts, None, "texts", progress)
    rows = ClusteredRows(targets, cluster(vectors, len(names)).tolist())
    predictions = _majority(rows)
    evaluation = Evaluation(
        {name: float(values[0]) for name, values in rows.scores(np.ones((1, len(rows)))).items()},
        [names[label] for label in predictions],
        places,
        labels,
        [{"text": text} for text in texts],
        Confusion(tuple(names), _count(targets, predictions, len(names))),
        skipped=skipped,
        rows=rows,
    )

    def fit() -> list[Baseline]:
        found = cluster(_reduced(tfidf_vectors(texts)), len(names)).tolist()
        return [Baseline("TF-IDF k-means", ClusteredRows(targets, found))]

    return replace(evaluation, baseline=baseline_scores(evaluation, fit, progress or Silent()))


def _majority(rows: ClusteredRows) -> list[int]:
    """Return the most frequent label of each row's cluster, (N,)."""
    table = np.zeros((max(rows.labels) + 1, max(rows.clusters) + 1), np.int64)
    np.add.at(table, (np.asarray(rows.labels), np.asarray(rows.clusters)), 1)
    best = table.argmax(0)
    return [int(best[number]) for number in rows.clusters]


def _count(targets: Sequence[int], predictions: Sequence[int], size: int) -> list[list[int]]:
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (np.asarray(targets), np.asarray(predictions)), 1)
    return [list(map(int, row)) for row in counts]


def _reduced(features: Any) -> Any:
    """Reduce TF-IDF vectors to latent dimensions of length 1: (N, F) -> (N, 100)."""
    from sklearn.decomposition import TruncatedSVD

    if min(features.shape) <= _LATENT:
        return features
    reduced = TruncatedSVD(_LATENT, random_state=_SEED).fit_transform(features)
    return reduced / np.maximum(np.linalg.norm(reduced, axis=1, keepdims=True), 1e-12)
