"""Frozen states and the heads that use them."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from cloze.errors import ConfigError
from cloze.model import Bert, HeadName
from cloze.model.adapters import Attachment, attach, without_attachment
from cloze.model.heads import Reader, key
from cloze.options import FeatureHead, Features
from tests.model.made import SMALL, random_bert
from tests.model.test_adapters import IDS, MASK, SEGMENTS, encode, move, trained

FEATURES = Attachment("features", "token", 3, size=4)


def make(reads: Features = "last", by: FeatureHead = "linear", head: HeadName = "token") -> tuple[Bert, Reader]:
    bert = random_bert(SMALL, ["mlm", "nsp"])
    attachment = replace(FEATURES, reads=reads, feature_head=by, head=head)
    attach(bert, attachment, seed=0)
    assert isinstance(bert.reader, Reader)
    return bert, bert.reader


def all_states() -> tuple[Tensor, ...]:
    bert = random_bert(SMALL, ["mlm", "nsp"])
    with torch.no_grad():
        return bert.encoder(IDS, SEGMENTS, MASK, keep_states=True).states  # type: ignore[no-any-return]


def test_last_layer_is_read_as_it_is() -> None:
    assert torch.equal(encode(make("last")[0]), all_states()[-1])


def test_last_four_are_side_by_side() -> None:
    assert torch.equal(encode(make("last4")[0]), torch.cat(all_states()[-4:], -1))


def test_mix_is_the_mean_at_first_and_follows_its_weights() -> None:
    bert, reader = make("mix")
    states = torch.stack(all_states())
    torch.testing.assert_close(encode(bert), states.mean(0))
    assert reader.weights is not None
    assert reader.scale is not None
    with torch.no_grad():
        reader.weights[1] = 20.0
        reader.scale.fill_(3.0)
    torch.testing.assert_close(encode(bert), 3 * states[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by", get_args(FeatureHead))
@pytest.mark.parametrize("reads", get_args(Features))
def test_padding_and_neighbours_change_nothing(reads: Features, by: FeatureHead) -> None:
    heads: tuple[HeadName, ...] = ("token", "sequence")
    for head in heads:
        bert, _ = make(reads, by, head)
        together = encode(bert)
        with torch.no_grad():
            alone = bert(IDS[1:, :4], SEGMENTS[1:, :4]).last
        torch.testing.assert_close(alone[0], together[1, : alone.shape[1]], atol=1e-6, rtol=1e-5)
        assert together.shape[1] == (5 if head == "token" else 1)


def test_pooled_heads_read_the_mean_of_the_tokens() -> None:
    bert, _ = make("last", head="sequence")
    last = all_states()[-1]
    expected = torch.stack([last[0].mean(0), last[1, :4].mean(0)])
    torch.testing.assert_close(bert.pooled(encode(bert), None), expected)


@pytest.mark.parametrize("by", get_args(FeatureHead))
@pytest.mark.parametrize("reads", get_args(Features))
def test_only_reader_and_head_are_trained_and_all_of_them(reads: Features, by: FeatureHead) -> None:
    bert, _ = make(reads, by)
    assert all(name.startswith(("reader.", "heads.token.")) for name in trained(bert))
    move(bert)
    bert.train()
    bert.heads["token"](bert(IDS, SEGMENTS, MASK).last).square().sum().backward()
    for name, parameter in bert.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.abs().max() > 0, name


def test_encoder_has_no_dropout_while_the_head_is_trained() -> None:
    bert, _ = make("last")
    bert.train()
    assert not any(module.training for module in bert.encoder.modules())
    assert bert.heads["token"].training
    with torch.no_grad():
        assert torch.equal(bert(IDS, SEGMENTS, MASK).last, all_states()[-1])


def test_kept_states_are_used_in_training_alone_and_only_for_rows_that_are_kept() -> None:
    bert, reader = make("last")
    rows = [([2, 7, 8, 9, 3], [0] * 5), ([2, 9, 7, 3], [0] * 4)]
    reader.cache = {key(*row): torch.full((1, len(row[0]), 16), float(number + 1)) for number, row in enumerate(rows)}
    with torch.no_grad():
        kept = bert.train()(IDS, SEGMENTS, MASK).last
        assert kept[0].eq(1).all()
        assert kept[1, :4].eq(2).all()
        assert not kept[1, 4].any()
        assert torch.equal(encode(bert), all_states()[-1])
        others = torch.tensor([[2, 8, 8, 9, 3], [2, 9, 7, 3, 0]])
        assert torch.equal(bert.train()(others, SEGMENTS, MASK).last, bert.eval()(others, SEGMENTS, MASK).last)
    assert not any("kept" in name for name in bert.state_dict())


def test_features_cannot_be_merged() -> None:
    with pytest.raises(ConfigError, match="a features adapter, unlike lora, cannot be merged"):
        without_attachment(make()[0])
