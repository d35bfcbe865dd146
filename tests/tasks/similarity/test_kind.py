"""Vector metrics compared with SciPy, scikit-learn and ``sentence-transformers``, and their rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sklearn.metrics import roc_auc_score

from cloze.errors import ConfigError, DataError, RequestError
from cloze.predict import evaluate, load
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import QuestionAnswers, ScoredPairs, read_rated
from tests.model.made import model_folder, saved

DRAW = np.random.default_rng(0)
FIRSTS, SECONDS = DRAW.normal(size=(2, 30, 6)).astype(np.float32)
TEXTS = [f"text {number}" for number in range(30)]


def cosines() -> list[float]:
    lengths = np.linalg.norm(FIRSTS, axis=1) * np.linalg.norm(SECONDS, axis=1)
    return list((FIRSTS * SECONDS).sum(1) / lengths)


def test_pairs_against_scipy_and_sklearn() -> None:
    scores = DRAW.integers(0, 6, 30).astype(float).tolist()
    rated = ScoredPairs(TEXTS, TEXTS, scores, TEXTS)
    assert rated.score(FIRSTS, SECONDS) == {"spearman": pytest.approx(spearmanr(scores, cosines())[0])}
    labels = DRAW.integers(0, 2, 30).astype(float).tolist()
    rated = ScoredPairs(TEXTS, TEXTS, labels, TEXTS)
    found = rated.evaluation(FIRSTS, SECONDS)
    assert found.metrics == {
        "auc": pytest.approx(roc_auc_score(labels, cosines())),
        "spearman": pytest.approx(spearmanr(labels, cosines())[0]),
    }
    assert [float(value) for value in found.predictions] == pytest.approx(cosines(), abs=1e-4)
    worst = max(range(30), key=lambda row: found.errors[row] if found.errors else 0)
    assert found.wrong()[0]["row"] == TEXTS[worst]


def test_questions_against_sentence_transformers() -> None:
    right = [tuple(sorted(set(DRAW.integers(0, 30, 2).tolist()))) for _ in range(30)]
    answers = QuestionAnswers(TEXTS, TEXTS, right, TEXTS)
    found = answers.evaluation(FIRSTS, SECONDS)
    named: Any = {str(number): str(number) for number in range(30)}
    theirs = InformationRetrievalEvaluator(
        named,
        named,
        {str(number): {str(answer) for answer in row} for number, row in enumerate(right)},
        mrr_at_k=[30],
        accuracy_at_k=[30],
        precision_recall_at_k=[1, 5, 10],
    )
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (FIRSTS, SECONDS)]
    order = np.argsort(-(units[0] @ units[1].T), axis=1)
    hits: list[Any] = [
        [{"corpus_id": str(answer), "score": -float(rank)} for rank, answer in enumerate(row)] for row in order.tolist()
    ]
    expected = theirs.compute_metrics(hits)
    assert found.metrics["mrr"] == pytest.approx(expected["mrr@k"][30])
    for count in (1, 5, 10):
        assert found.metrics[f"recall@{count}"] == pytest.approx(expected["recall@k"][count])
    assert found.predictions == [TEXTS[row[0]] for row in order]
    assert len(found.wrong()) == sum(row[0] not in own for row, own in zip(order, right, strict=True))


def test_constant_vectors_find_nothing() -> None:
    same = np.ones((30, 4), np.float32)
    answers = QuestionAnswers(TEXTS, TEXTS, [(number,) for number in range(30)], TEXTS)
    assert answers.score(same, same) == {"mrr": pytest.approx(1 / 30), "recall@1": 0, "recall@5": 0, "recall@10": 0}


def test_rows_determine_the_metrics(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def read(text: str, label: str = "label") -> ScoredPairs | QuestionAnswers:
        path.write_text(text, encoding="utf-8")
        return read_rated(Source("similarity", path, pair="pair", label=label), path)

    assert read("text,pair,label\na,b,1\nc,d,0\n").metrics == ("auc", "spearman")
    assert read("text,pair,score\na,b,4.5\nc,d,0\n", "score").metrics == ("spearman",)
    questions = read("text,pair\na,b\na,c\nd,b\n")
    assert isinstance(questions, QuestionAnswers)
    assert (questions.firsts, questions.seconds, questions.right) == (["a", "d"], ["b", "c"], [(0, 1), (0,)])
    assert questions.places == [f"{path}:2", f"{path}:4"]
    with pytest.raises(DataError, match=r"every label in 'label' is 1; expected both 0 and 1, or scores; leave the co"):
        read("text,pair,label\na,b,1\nc,d,1\n")
    with pytest.raises(DataError, match=r"1 different second texts; expected at least 2 to choose among"):
        read("text,pair\na,b\nc,b\n")
    with pytest.raises(ConfigError, match=r"pair \(--pair\) is missing; name the column with the second texts"):
        read_rated(Source("similarity", path), path)


def test_evaluate_scores_the_vectors_of_any_model(tmp_path: Path) -> None:
    folder = saved(model_folder(), tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "the cat", "pair": "a cat", "label": 1}\n{"text": "the dog", "pair": "ran", "label": 0}\n'
        '{"text": "on a mat", "pair": "the cat", "label": 0}\n',
        encoding="utf-8",
    )
    source = Source("similarity", rows, pair="pair")
    found = evaluate(folder, source)
    firsts, seconds = (load(folder).embed([row[side] for row in found.inputs]) for side in ("text", "pair"))
    near = (firsts * seconds).sum(1) / (np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1))
    assert found.metrics["auc"] == pytest.approx(roc_auc_score([1, 0, 0], near))
    assert found.results()["rows"] == 3
    with pytest.raises(RequestError, match="your own files have no split 'test'"):
        evaluate(folder, source, split="test")
    with pytest.raises(RequestError, match="longest is 3, which applies only to question answering"):
        evaluate(folder, source, longest=3)


def test_vectors_stand_beside_those_of_tf_idf(tmp_path: Path) -> None:
    """Pairs and retrieval have a baseline, the cosines of TF-IDF vectors, which is compared row by row."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = ["river", "winter", "garden", "captain", "silver", "window"]
    firsts = [f"the {one} and the {other}" for one in words for other in words]
    seconds = [f"a {words[(index * 5 + index // 6) % 6]} alone" for index in range(36)]
    both = list(zip(firsts, seconds, strict=True))
    labels = [float(bool(set(one.split()) & set(other.split()) & set(words))) for one, other in both]
    rows = [
        {"text": one, "pair": other, "label": label} for one, other, label in zip(firsts, seconds, labels, strict=True)
    ]
    model = load(saved(model_folder(), tmp_path / "model"))
    found = evaluate("similarity", rows, model=model, pair="pair")
    assert found.baseline is not None
    vectorizer = TfidfVectorizer(token_pattern=r"[^\W_]+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True)
    vectorizer.fit([*firsts, *seconds])
    expected = (vectorizer.transform(firsts).toarray() * vectorizer.transform(seconds).toarray()).sum(1)
    assert found.baseline["name"] == "TF-IDF cosine"
    assert found.baseline["auc"] == pytest.approx(roc_auc_score(labels, expected))
    assert found.baseline["spearman"] == pytest.approx(spearmanr(labels, expected)[0])
    assert found.baseline["difference"]["value"] == pytest.approx(found.metrics["auc"] - found.baseline["auc"])
    assert "TF-IDF cosine" in str(found)
    assert "TF-IDF cosine" in found._repr_html_()

    retrieval = [{"text": f"where is {word} {word}?", "pair": f"{word} is here"} for word in words * 2]
    questions = evaluate("similarity", retrieval, model=model, pair="pair")
    assert questions.baseline is not None
    assert (questions.baseline["mrr"], questions.baseline["recall@1"]) == (1.0, 1.0)
