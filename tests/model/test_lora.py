"""LoRA: the adapted layers, and merging into the weights."""

import torch

from cloze.model.adapters import LowRank, attach, without_attachment
from tests.model.made import SMALL, random_bert
from tests.model.test_adapters import LORA, encode, move, trained


def test_query_and_value_are_changed_and_not_the_key() -> None:
    change = LowRank(SMALL, rank=2, alpha=6.0)
    states = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        query, key, value = change(states).chunk(3, -1)
        expected = 3.0 * states @ (change.query_up.weight @ change.query_down.weight).T
        torch.testing.assert_close(query, expected)
        assert not key.any()
        assert value.abs().max() > 0
        torch.testing.assert_close(change(states), states @ change.weight().T)


def test_changes_and_head_are_trained_and_nothing_else() -> None:
    bert = random_bert(SMALL, ["mlm", "nsp"])
    attach(bert, LORA, seed=0)
    assert all("low_rank" in name or name.startswith("heads.sequence.") for name in trained(bert))
    assert sum("low_rank" in name for name in trained(bert)) == 4 * SMALL.layers


def test_merged_model_is_plain_with_equal_outputs() -> None:
    bert = random_bert(SMALL, ["sequence"], labels=3)
    attach(bert, LORA, seed=0)
    base = encode(bert)
    move(bert)
    expected = encode(bert)
    merged = without_attachment(bert)
    assert (expected - base).abs().max() > 0.01
    torch.testing.assert_close(encode(merged), expected, atol=1e-6, rtol=0)
    assert merged.state_dict().keys() == random_bert(SMALL, ["sequence"], labels=3).state_dict().keys()
    assert torch.equal(encode(bert), expected), "the merged model's source is unchanged"
