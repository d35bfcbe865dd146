"""Clustering metrics compared with scikit-learn, and the evaluation of vectors on labelled texts."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, v_measure_score

from cloze.errors import DataError
from cloze.predict import Model
from cloze.predict.clustering import ClusteredRows, evaluate_clustering
from cloze.tasks.rows import Source
from tests.model.made import model_folder

TEXTS = ["the cat sat on a mat"] * 3 + ["dog ran, dog ran"] * 3 + ["猫 坐"] * 2
LABELS = ["a"] * 3 + ["b"] * 3 + ["c"] * 2


def test_metrics_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    for labels, clusters in ((2, 2), (5, 3), (1, 3), (3, 1), (10, 10)):
        targets = draw.integers(0, labels, 50).tolist()
        found = [draw.integers(0, clusters) if draw.random() < 0.4 else one % clusters for one in targets]
        rows = ClusteredRows(targets, [int(one) for one in found])
        drawn = draw.integers(0, 50, 50)
        counts = np.stack([np.ones(50), np.bincount(drawn, minlength=50)])
        scores = rows.scores(counts)
        for number, chosen in enumerate((np.arange(50), drawn)):
            pair = np.array(targets)[chosen], np.array(found)[chosen]
            assert scores["v_measure"][number] == pytest.approx(v_measure_score(*pair), abs=1e-9)
            assert scores["ari"][number] == pytest.approx(adjusted_rand_score(*pair), abs=1e-9)


def test_texts_of_equal_words_are_clusters() -> None:
    found = evaluate_clustering(Model(model_folder()), Source("clustering", (TEXTS, LABELS)))
    assert found.metrics == {"v_measure": pytest.approx(1.0), "ari": pytest.approx(1.0)}
    assert found.predictions == LABELS
    assert found.wrong() == []
    assert found.baseline is not None
    assert found.baseline["name"] == "TF-IDF k-means"
    assert found.baseline["v_measure"] == pytest.approx(1.0)
    low, high = found.intervals["v_measure"]
    assert low <= 1.0 <= high + 1e-9


def test_a_single_label_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na cat,x\na dog,x\n")
    with pytest.raises(DataError, match=r"rows.csv: all 2 rows have the label 'x'; expected at least two labels"):
        evaluate_clustering(Model(model_folder()), Source("clustering", path))
