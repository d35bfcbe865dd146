"""Fine-tuned heads: labels and numbers, in the order of the texts."""

import random

import numpy
import pytest
import torch
import transformers

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.predict import Model
from cloze.tasks.classification.decoding import evaluate_numbers
from cloze.tasks.classification.kind import LabelledTexts
from tests.model.made import assert_close, model_folder

NAMES = ("no", "perhaps", "yes")
LABELLER = Model(model_folder(["sequence"], labels=3, task=TaskLabels("classify", NAMES)))
REGRESSOR = Model(model_folder(["sequence"], labels=1, task=TaskLabels("regress")))
SOURCE = random.Random(3)
TEXTS = [" ".join(SOURCE.choices(LABELLER.tokenizer.pieces[5:], k=SOURCE.randint(0, 25))) for _ in range(60)]
PAIRS = TEXTS[::-1]


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The logits of ``transformers`` for each text alone: (N, 3)."""
    folder = tmp_path_factory.mktemp("labeller") / "model"
    LABELLER.save(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        rows = [theirs(**tokenizer(text, truncation=True, return_tensors="pt")).logits for text in TEXTS]
    return torch.cat(rows)


def test_classify_equals_transformers(logits: torch.Tensor) -> None:
    probabilities = logits.softmax(-1)
    assert len(set(probabilities.argmax(-1).tolist())) > 1  # otherwise the test would accept any order
    for answer, row in zip(LABELLER.classify(TEXTS), probabilities, strict=True):
        assert tuple(answer.probabilities) == NAMES
        assert_close(list(answer.probabilities.values()), row)
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert answer.label == NAMES[int(row.argmax())]
        assert answer.probability == answer.probabilities[answer.label] == max(answer.probabilities.values())
    assert_close(LABELLER.logits(TEXTS), logits)


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_answers_keep_the_order_of_the_texts(pairs: list[str] | None) -> None:
    alone = [LABELLER.logits([text], pairs and [pairs[index]])[0] for index, text in enumerate(TEXTS)]
    order = random.Random(5).sample(range(len(TEXTS)), len(TEXTS))
    shuffled = LABELLER.logits([TEXTS[index] for index in order], pairs and [pairs[index] for index in order])
    assert_close(shuffled, numpy.stack([alone[index] for index in order]))


def test_regress() -> None:
    numbers = REGRESSOR.regress(TEXTS, PAIRS)
    assert numbers.shape == (60,)
    numpy.testing.assert_array_equal(numbers, REGRESSOR.logits(TEXTS, PAIRS)[:, 0])
    assert_close(numbers[:1], REGRESSOR.regress(TEXTS[:1], PAIRS[:1]))


def test_wrong_numbers_are_those_furthest_off() -> None:
    numbers = REGRESSOR.regress(TEXTS)
    off = numpy.arange(60) * numpy.where(numpy.arange(60) % 2, 1.0, -1.0)  # the error grows with the index
    places = [f"rows:{index}" for index in range(60)]
    rows = LabelledTexts(TEXTS, None, (numbers + off).tolist(), places)
    wrong = evaluate_numbers(REGRESSOR, rows, ["pearson"]).wrong()
    assert [row["row"] for row in wrong] == [f"rows:{index}" for index in (59, 58, 57, 56, 55, 54)]
    assert float(wrong[0]["expected"]) - float(wrong[0]["predicted"]) == pytest.approx(59, rel=1e-5)


def test_nothing_to_answer() -> None:
    assert LABELLER.classify([]) == []
    assert LABELLER.logits([]).shape == (0, 3)
    assert REGRESSOR.regress([]).shape == (0,)


def test_the_other_kind_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"^this model was not trained to regress; its head was trained for: classify$"
    ):
        LABELLER.regress(TEXTS)
    with pytest.raises(
        RequestError, match=r"^this model was not trained to classify; its head was trained for: regress$"
    ):
        REGRESSOR.classify(TEXTS)
