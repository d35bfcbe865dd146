"""Predictive tokens compared with a plain computation by ``transformers``, one mask at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM, BertModel

from cloze.inspect.relations import influence_measure, masking_influences, top_influences
from cloze.predict import Model, load
from tests.model.made import model_folder, saved

TEXT, PAIR = "the cat sat on a mat .", "a dog ran"


@pytest.fixture(scope="module")
def pretrained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm"]), tmp_path_factory.mktemp("mlm") / "model")


def plain_rises(folder: Path, model: Model) -> np.ndarray:
    oracle = BertForMaskedLM.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    encoding = model.tokenizer(TEXT, PAIR)
    count = len(encoding.ids)
    rises = np.zeros((count, count))

    def loss(place: int, masked: set[int]) -> float:
        ids = [model.tokenizer.mask_id if one in masked else number for one, number in enumerate(encoding.ids)]
        with torch.no_grad():
            logits = oracle(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([encoding.segments])).logits[
                0, place
            ]
        return -float(logits.log_softmax(-1)[encoding.ids[place]])

    ordinary = [place for place, source in enumerate(encoding.sources) if source is not None]
    for row in ordinary:
        for column in ordinary:
            rises[row, column] = loss(row, {row, column}) - loss(row, {row})
    return rises


def test_rise_of_the_loss_equals_transformers(pretrained_folder: Path) -> None:
    model = load(pretrained_folder)
    assert influence_measure(model) == "loss of masked words"
    found = masking_influences(model, model.tokenizer(TEXT, PAIR))
    np.testing.assert_allclose(found, plain_rises(pretrained_folder, model), atol=1e-4)


def test_change_of_states_equals_transformers(tmp_path: Path) -> None:
    folder = saved(model_folder(), tmp_path / "model")
    model = load(folder)
    oracle = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()  # type: ignore[no-untyped-call]
    assert influence_measure(model) == "change of the last states"
    encoding = model.tokenizer(TEXT)
    found = masking_influences(model, encoding)

    def states(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            last: torch.Tensor = oracle(input_ids=torch.tensor([ids])).last_hidden_state[0]
        return last

    whole = states(encoding.ids)
    for column in range(1, len(encoding.ids) - 1):
        ids = [*encoding.ids[:column], model.tokenizer.mask_id, *encoding.ids[column + 1 :]]
        turn = 1 - torch.cosine_similarity(states(ids), whole, dim=-1)
        rows = [row for row in range(1, len(ids) - 1) if row != column]
        np.testing.assert_allclose(found[rows, column], turn[rows], atol=1e-5)
    assert not found[[0, -1]].any()
    assert not found[:, [0, -1]].any()
    assert not found.diagonal().any()


def test_strongest_are_the_top_that_matter() -> None:
    influence = np.array([[0.0, 3.0, 1.0, 2.0], [-1.0, 0.0, -2.0, -3.0], [0.5, 0.0, 0.0, -1.0], [1.0, 1.0, 1.0, 0.0]])
    assert [np.flatnonzero(row).tolist() for row in top_influences(influence, 2)] == [[1, 3], [], [0], [0, 1]]


def test_single_word_has_no_predictive_token(pretrained_folder: Path) -> None:
    model = load(pretrained_folder)
    assert not masking_influences(model, model.tokenizer("cat")).any()
