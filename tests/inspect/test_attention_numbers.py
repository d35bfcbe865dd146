"""``Model.attend``: blocks that add up to the whole, entropy and distance."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from cloze.predict import Attention, load
from tests.model.made import model_folder, saved


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Attention:
    folder: Path = saved(model_folder(), tmp_path_factory.mktemp("model") / "model")
    return load(folder).attend("the cats sat on a mat.", "a dog ran.")


def test_blocks_make_up_the_whole(attention: Attention) -> None:
    rows = [np.concatenate([attention.block(source, 0), attention.block(source, 1)], -1) for source in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(rows, -2), attention.weights)
    first = attention.segments.count(0)
    assert attention.block(0, 1).shape == (3, 2, first, len(attention.tokens) - first)


def test_rows_sum_to_one(attention: Attention) -> None:
    np.testing.assert_allclose(attention.weights.sum(-1), 1.0, atol=1e-5)


def test_entropy_and_distance(attention: Attention) -> None:
    np.testing.assert_allclose(attention.entropy, entropy(attention.weights, axis=-1), atol=1e-5)
    assert attention.entropy.max() <= np.log(len(attention.tokens)) + 1e-5
    layer, head, place = 2, 1, 3
    row = attention.weights[layer, head, place]
    by_hand = sum(weight * abs(place - other) for other, weight in enumerate(row))
    assert attention.distance[layer, head, place] == pytest.approx(by_hand, abs=1e-5)


def test_weight_of_zero_has_no_entropy() -> None:
    attention = Attention(["a", "b"], [0, 0], np.array([[[[1.0, 0.0], [0.5, 0.5]]]], np.float32))
    np.testing.assert_allclose(attention.entropy[0, 0], [0.0, np.log(2)], atol=1e-6)
    np.testing.assert_allclose(attention.distance[0, 0], [0.0, 0.5], atol=1e-6)
