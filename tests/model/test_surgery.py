"""Models with more words, positions or segments: new rows are initialized correctly, others are unchanged."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cloze.errors import ConfigError
from cloze.model import Backbone, Bert, BertConfig, HeadName
from cloze.model.surgery import RowStart, with_heads, with_positions, with_segments, with_words
from tests.model.made import EVERY_HEADS, SMALL, random_bert

TOKENS = "encoder.embeddings.token.weight"
BIAS = "heads.mlm.bias"
BOUNDARY_BIAS = "heads.sbo.bias"
POSITIONS = "encoder.embeddings.position.weight"
SEGMENTS = "encoder.embeddings.segment.weight"
# Rows 5 and 7 are in the table; 60 and 61 are added at its end.
PIECES = {7: (20,), 60: (21, 22, 23), 5: (30, 31), 61: (21, 21)}


@pytest.mark.parametrize("heads", EVERY_HEADS, ids=lambda heads: " ".join(heads) or "none")
def test_new_rows_are_means_and_all_else_stays(heads: list[HeadName]) -> None:
    model = random_bert(heads=heads, labels=3)
    changed = with_words(model, PIECES)
    assert changed.config == replace(model.config, vocab_size=62)
    assert (changed.head_names, changed.labels, changed.training) == (model.head_names, 3, False)
    old, new = model.state_dict(), changed.state_dict()
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        if name not in (TOKENS, BIAS, BOUNDARY_BIAS):
            assert torch.equal(new[name], tensor)
            continue
        assert len(new[name]) == 62
        kept = [row for row in range(60) if row not in PIECES]
        assert torch.equal(new[name][kept], tensor[kept])
        for row, pieces in PIECES.items():
            assert torch.equal(new[name][row], sum(tensor[piece] for piece in pieces) / len(pieces))


def test_the_model_itself_is_left_alone() -> None:
    model = random_bert(heads=["mlm"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with_words(model.train(), PIECES)
    assert model.training
    assert with_words(model, PIECES).training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_rows_inside_the_table_leave_its_size() -> None:
    model = random_bert(heads=["mlm"])
    assert with_words(model, {5: (30,)}).config == model.config
    assert with_words(model, {}).config == model.config


def test_random_start_follows_from_the_seed() -> None:
    model = random_bert(heads=["mlm"])
    one, same, other = (with_words(model, PIECES, start="random", seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(one[TOKENS], same[TOKENS])
    assert torch.equal(one[TOKENS][:5], model.state_dict()[TOKENS][:5])
    rows = list(PIECES)
    assert not (one[TOKENS][rows] == other[TOKENS][rows]).any()
    assert not one[BIAS][rows].any()
    assert 0 < one[TOKENS][rows].std() < 3 * model.config.initial_deviation


def random_ids(model: Backbone, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(10, 60, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    return ids, torch.zeros_like(ids), (torch.arange(length) < lengths).long()


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2, 7, 32])
@pytest.mark.parametrize("words", [1, 4, 100])
def test_old_inputs_are_bit_identical(batch: int, words: int) -> None:
    config = replace(SMALL, vocab_size=500, hidden_size=64, feedforward_size=128)
    model = random_bert(config, ["mlm", "nsp"])
    changed = with_words(model, {5: (30,)} | {500 + word: (20 + word, 21) for word in range(words)})
    ids, segments, mask = random_ids(model, batch, 24)
    old, new = model(ids, segments, mask), changed(ids, segments, mask)
    assert torch.equal(new.last, old.last)
    assert torch.equal(changed.pooled(new.last, None), model.pooled(old.last, None))
    kept = [row for row in range(500) if row != 5]
    logits = model.heads["mlm"](old.last), changed.heads["mlm"](new.last)
    assert torch.equal(logits[1][..., kept], logits[0][..., kept])


ALBERT = replace(SMALL, embedding_size=10, shared_layers=True)


@torch.no_grad()
@pytest.mark.parametrize("start", ["copies", "random"])
@pytest.mark.parametrize("config", [SMALL, ALBERT], ids=["bert", "albert"])
def test_more_positions_and_segments_keep_old_results(config: BertConfig, start: RowStart) -> None:
    model = random_bert(config, ["mlm", "nsp", "sbo"])
    changed = with_segments(with_positions(model, 80, start=start, seed=1), 4, start=start, seed=1)
    assert changed.config == replace(config, positions=80, segments=4)
    assert (changed.head_names, changed.training) == (model.head_names, False)
    old, new = model.state_dict(), changed.state_dict()
    assert all(torch.equal(new[name], old[name]) for name in old if name not in (POSITIONS, SEGMENTS))
    for batch, length in ((1, 32), (3, 7)):
        ids, segments, mask = random_ids(model, batch, length)
        segments[:, 3:] = 1
        before, after = model(ids, segments, mask).last, changed(ids, segments, mask).last
        assert torch.equal(before, after)
        assert torch.equal(model.heads["mlm"](before), changed.heads["mlm"](after))
    assert changed(*random_ids(model, 2, 80)).last.isfinite().all()


def test_new_positions_repeat_the_old_in_order() -> None:
    model = random_bert()
    rows, old = with_positions(model, 80).state_dict()[POSITIONS], model.state_dict()[POSITIONS]
    assert torch.equal(rows, torch.cat([old, old, old])[:80])


def test_new_segments_are_the_last_one() -> None:
    for segments in (1, 2):
        model = random_bert(replace(SMALL, segments=segments))
        rows, old = with_segments(model, 4).state_dict()[SEGMENTS], model.state_dict()[SEGMENTS]
        assert torch.equal(rows, torch.stack([*old, *[old[-1]] * (4 - segments)]))


@pytest.mark.parametrize(("extend", "name"), [(with_positions, POSITIONS), (with_segments, SEGMENTS)])
def test_random_rows_follow_from_the_seed(extend: Callable[..., Bert], name: str) -> None:
    model = random_bert()
    one, same, other = (extend(model, 90, start="random", seed=seed).state_dict()[name] for seed in (1, 1, 2))
    count = len(model.state_dict()[name])
    assert torch.equal(one, same)
    assert not (one[count:] == other[count:]).any()
    assert one[count:].std().item() == pytest.approx(model.config.initial_deviation, rel=0.2)


def test_existing_rows_are_not_removed() -> None:
    model = random_bert()
    with pytest.raises(
        ConfigError, match=r"^positions is 31, but the model already has 32; they can only be added, not removed$"
    ):
        with_positions(model, 31)
    with pytest.raises(
        ConfigError, match=r"^segments is 1, but the model already has 2; they can only be added, not removed"
    ):
        with_segments(model, 1)
    assert with_positions(with_segments(model, 2), 32).config == model.config


def test_boundary_head_is_removed_for_a_task() -> None:
    model = random_bert(heads=["mlm", "sop", "sbo"])
    further = with_heads(model, ["mlm", "sop", "sbo"], keep=True, seed=1)
    assert all(torch.equal(tensor, further.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert with_heads(model, ["sequence"], keep=False, seed=1).head_names == ("sequence",)
