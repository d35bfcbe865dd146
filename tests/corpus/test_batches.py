from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.masking import Ids
from cloze.corpus.pairs import plan_pairs
from cloze.corpus.settings import MaskSettings, PairSettings
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.text import Tokenizer


def make_batches(prepared: Path, tokenizer: Tokenizer, *, batch: int = 8, seed: int = 0) -> PretrainingBatches:
    return PretrainingBatches(Corpus.open(prepared), tokenizer, batch, PairSettings(32), MaskSettings(), seed)


def same(one: PretrainingBatch, other: PretrainingBatch) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def steps_of_first_epoch(batches: PretrainingBatches) -> int:
    step = 0
    while batches.epoch_at(step) == 0:
        step += 1
    return step


def test_batch_is_a_function_of_seed_and_step(prepared: Path, tokenizer: Tokenizer) -> None:
    batches = make_batches(prepared, tokenizer)
    epoch = steps_of_first_epoch(batches)
    steps = [0, epoch - 1, epoch, 2 * epoch + 1, 3]
    in_order = {step: batches.at(step) for step in sorted(steps)}
    for step in steps:  # back and forth over epochs
        assert same(batches.at(step), in_order[step])
        assert same(make_batches(prepared, tokenizer).at(step), in_order[step])
    assert not same(make_batches(prepared, tokenizer, seed=1).at(3), in_order[3])


def originals(batch: PretrainingBatch) -> Ids:
    """The ids before anything was hidden."""
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions] = batch.targets
    return ids.reshape(batch.ids.shape)


def test_sequences_are_the_planned_segments(prepared: Path, tokenizer: Tokenizer) -> None:
    batches = make_batches(prepared, tokenizer)
    tokens = batches.corpus.tokens
    plan = plan_pairs(batches.corpus, batches.pairs, np.random.default_rng([0, 1, 0]))
    for step in range(5):
        batch = batches.at(step)
        rows = plan[step * 8 : step * 8 + 8]
        for row, (a_start, a_stop, b_start, b_stop, is_random) in enumerate(rows.tolist()):
            first, second = tokens[a_start:a_stop].tolist(), tokens[b_start:b_stop].tolist()
            expected = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
            padding = batch.ids.shape[1] - len(expected)
            assert originals(batch)[row].tolist() == expected + [tokenizer.pad_id] * padding
            segments = [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * padding
            assert batch.segments[row].tolist() == segments
            assert batch.lengths[row] == len(expected)
            assert batch.is_random[row] == is_random
        assert batch.token_count == batch.lengths.sum()
        assert batch.ids.shape[1] == batch.lengths.max()  # no padding that nobody needs


def test_special_tokens_are_never_chosen_or_written(prepared: Path, tokenizer: Tokenizer) -> None:
    batches = make_batches(prepared, tokenizer)
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    for step in range(40):
        batch = batches.at(step)
        assert not special & set(batch.targets.tolist())
        seen = batch.ids.reshape(-1)[batch.positions]
        changed = seen[seen != batch.targets]
        assert not tokenizer.special_ids - {tokenizer.mask_id} & set(changed.tolist())
        rows = batch.positions // batch.ids.shape[1]
        expected = [max(1, round(length * 0.15)) for length in batch.lengths.tolist()]
        assert np.bincount(rows, minlength=8).tolist() == expected


def test_pairs_and_masks_are_new_in_every_epoch(prepared: Path, tokenizer: Tokenizer) -> None:
    batches = make_batches(prepared, tokenizer)
    epoch = steps_of_first_epoch(batches)
    first, second = ([batches.at(start + step) for step in range(epoch)] for start in (0, epoch))
    masked = [{tuple(row) for batch in half for row in batch.ids.tolist()} for half in (first, second)]
    assert len(masked[0] & masked[1]) < 0.05 * len(masked[0])


def test_too_little_text_is_told_with_advice(prepared: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"sequences of 32 tokens, fewer than one batch of 9999; use more text, a smal"):
        make_batches(prepared, tokenizer, batch=9999).at(0)
