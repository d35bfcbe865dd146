import hashlib
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.sampling import Ids, plan_next_sentences
from cloze.corpus.settings import ExampleSettings, Masking, MaskSettings, Objective
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError, DataError
from tests.corpus.made_corpora import FIRST_WORD, WORDS, made_tokenizer, make_corpus, make_word_corpus

TOKENIZER = made_tokenizer()
CORPUS = make_word_corpus(30)
TABLES = WordTables(
    entities=tuple((FIRST_WORD + one, FIRST_WORD + other) for one in range(40) for other in range(40)),
    similar={(FIRST_WORD + number,): ((FIRST_WORD + number + 1,),) for number in range(WORDS - 1)},
)


def make_batches(
    objective: Objective = "nsp",
    masking: Masking = "token",
    *,
    corpus: Corpus = CORPUS,
    batch: int = 8,
    length: int = 48,
    seed: int = 0,
    static: int = 0,
) -> PretrainingBatches:
    return PretrainingBatches(
        corpus,
        TOKENIZER,
        batch_size=batch,
        examples=ExampleSettings(objective, length),
        masks=MaskSettings(masking),
        seed=seed,
        static=static,
        tables=TABLES,
    )


def one_document() -> Corpus:
    corpus = make_corpus([400], (3, 20))
    tokens = corpus.read(0, corpus.token_count) % WORDS + FIRST_WORD
    return Corpus(tokens, corpus.sentences, corpus.documents, corpus.words)


def same(one: PretrainingBatch, other: PretrainingBatch) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def originals(batch: PretrainingBatch) -> Ids:
    """Return the ids before masking."""
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions] = batch.targets
    return ids.reshape(batch.ids.shape)


@pytest.mark.parametrize("static", [0, 2])
def test_batch_is_a_function_of_seed_and_step(static: int) -> None:
    batches = make_batches(static=static)
    epoch = batches.steps_in(0)
    assert batches.epoch_at(epoch - 1) == 0
    assert batches.epoch_at(epoch) == 1
    steps = [0, epoch - 1, epoch, 2 * epoch + 1, 3]
    in_order = {step: batches.at(step) for step in sorted(steps)}
    for step in steps:  # steps in any order, across epochs
        assert same(batches.at(step), in_order[step])
        assert same(make_batches(static=static).at(step), in_order[step])
    assert not same(make_batches(static=static, seed=1).at(3), in_order[3])


def test_sequences_are_the_planned_segments() -> None:
    batches = make_batches()
    plan = plan_next_sentences(CORPUS, batches.examples, np.random.default_rng([0, 1, 0]))
    order = np.random.default_rng([0, 2, 0]).permutation(plan.count)
    for step in range(5):
        batch = batches.at(step)
        for row, example in enumerate(order[step * 8 : step * 8 + 8].tolist()):
            (a_start, a_stop, _), (b_start, b_stop, _) = plan.chunks_of(np.array([example]))[0]
            first, second = CORPUS.read(a_start, a_stop).tolist(), CORPUS.read(b_start, b_stop).tolist()
            expected = [TOKENIZER.cls_id, *first, TOKENIZER.sep_id, *second, TOKENIZER.sep_id]
            padding = batch.ids.shape[1] - len(expected)
            assert originals(batch)[row].tolist() == expected + [TOKENIZER.pad_id] * padding
            segments = [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * padding
            assert batch.segments[row].tolist() == segments
            assert batch.lengths[row] == len(expected)
            assert batch.labels[row] == plan.labels[example]
        assert batch.token_count == batch.lengths.sum()
        assert batch.ids.shape[1] == batch.lengths.max()  # no unnecessary padding


def test_full_sentences_are_one_segment_without_labels() -> None:
    batch = make_batches("none", batch=64).at(0)
    assert not batch.segments.any()
    assert batch.labels.shape == (0,)
    separators = (originals(batch) == TOKENIZER.sep_id).sum(1)
    assert separators.min() == 1
    assert separators.max() > 1  # [SEP] also occurs at the end of a document
    assert (originals(batch)[np.arange(64), batch.lengths - 1] == TOKENIZER.sep_id).all()


@pytest.mark.parametrize("masking", get_args(Masking))
def test_special_tokens_are_never_chosen_or_written(masking: Masking) -> None:
    batches = make_batches(masking=masking)
    special = {TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.pad_id}
    for step in range(40):
        batch = batches.at(step)
        assert not special & set(batch.targets.tolist())
        seen = batch.ids.reshape(-1)[batch.positions]
        assert (seen[seen != TOKENIZER.mask_id] >= FIRST_WORD).all()
        rows = batch.positions // batch.ids.shape[1]
        budget = [max(1, round(length * 0.15)) for length in batch.lengths.tolist()]
        assert (np.bincount(rows, minlength=8) <= budget).all()
        assert len({len(batch.positions), len(batch.targets), len(batch.fates), len(batch.units)}) == 1
        assert (batch.boundaries is not None) == (masking == "span")


@pytest.mark.parametrize("objective", get_args(Objective))
@pytest.mark.parametrize("masking", get_args(Masking))
def test_parts_together_are_the_whole(objective: Objective, masking: Masking) -> None:
    batches = make_batches(objective, masking)
    step = batches.steps_in(0) + 1
    whole = batches.at(step)
    for parts in (1, 2, 3, 8):
        found = [make_batches(objective, masking).at(step, part, parts) for part in range(parts)]
        sizes = [len(part.ids) for part in found]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == 8
        for name in ("ids", "segments", "lengths", "targets", "fates", "labels"):
            assert (np.concatenate([getattr(part, name) for part in found]) == getattr(whole, name)).all()
        offsets = np.cumsum([0, *(part.ids.size for part in found[:-1])])
        moved = [part.positions + offset for part, offset in zip(found, offsets, strict=True)]
        assert np.concatenate(moved).tolist() == whole.positions.tolist()


def test_parts_that_cannot_be_are_refused() -> None:
    for part, parts in ((2, 2), (-1, 2), (0, 9), (0, 0)):
        with pytest.raises(
            ConfigError, match=f"part {part} of {parts} of a batch of 8; expected parts of at least one sequence"
        ):
            make_batches().at(0, part, parts)


@pytest.mark.parametrize("masking", get_args(Masking))
def test_row_is_the_same_in_a_longer_batch(masking: Masking) -> None:
    # The rows of a step do not depend on the batch size.
    small, large = (make_batches(masking=masking, batch=batch).at(0) for batch in (4, 16))
    width = small.ids.shape[1]
    assert (large.ids[:4, :width] == small.ids).all()


def test_pairs_and_masks_are_new_in_every_epoch() -> None:
    batches = make_batches()
    epoch = batches.steps_in(0)
    first, second = ([batches.at(start + step) for step in range(epoch)] for start in (0, epoch))
    masked = [{tuple(row) for batch in half for row in batch.ids.tolist()} for half in (first, second)]
    assert len(masked[0] & masked[1]) < 0.05 * len(masked[0])


def rows_of(batches: PretrainingBatches, epoch: int) -> set[tuple[int, ...]]:
    """Return all rows of an epoch without padding."""
    start = sum(batches.steps_in(number) for number in range(epoch))
    made = [batches.at(start + step) for step in range(batches.steps_in(epoch))]
    return {
        tuple(row[:length]) for batch in made for row, length in zip(batch.ids.tolist(), batch.lengths, strict=True)
    }


@pytest.mark.parametrize("masking", ["token", "span"])
@pytest.mark.parametrize("objective", get_args(Objective))
def test_static_variants_take_turns(objective: Objective, masking: Masking) -> None:
    batches = make_batches(objective, masking, static=2, batch=1)
    epochs = [rows_of(batches, epoch) for epoch in range(4)]
    assert epochs[0] == epochs[2]
    assert epochs[1] == epochs[3]
    assert len(epochs[0] & epochs[1]) < 0.05 * len(epochs[0])
    # The order still differs.
    first, third = batches.at(0), batches.at(batches.steps_in(0) + batches.steps_in(1))
    assert not same(first, third)


def test_variants_of_the_same_sequences_have_different_masks() -> None:
    batches = make_batches("none", corpus=one_document(), static=2, batch=1)
    plans = [batches.examples_at(epoch * batches.steps_in(0)).plan for epoch in range(2)]
    assert (plans[0].chunks == plans[1].chunks).all()
    assert not rows_of(batches, 0) & rows_of(batches, 1)


# The first 16 digits of the SHA-256 of the first three steps, recorded by the test below; to record them again, print
# the compared values. They change with NumPy's random number generator, and so would the batches of every run.
GOLDEN: dict[tuple[Objective, Masking], str] = {
    ("nsp", "token"): "cd3840187737418a",
    ("nsp", "word"): "6ab14336512cefcb",
    ("nsp", "ngram"): "c4eff9e11e558fde",
    ("nsp", "span"): "84114276bed7f2fc",
    ("nsp", "entity"): "cad41e80e840a945",
    ("nsp", "correction"): "90f96362248a55be",
    ("sop", "word"): "dc9c32335a2e44e6",
    ("none", "span"): "42e756393125c60c",
}


def digest(objective: Objective, masking: Masking) -> str:
    batches, found = make_batches(objective, masking), hashlib.sha256()
    for step in range(3):
        batch = batches.at(step)
        for field in fields(batch):
            if field.name == "objective":
                continue  # newer than the digests
            value = getattr(batch, field.name)
            found.update(b"" if value is None else np.ascontiguousarray(value).astype("<i8").tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("pair", GOLDEN, ids="-".join)
def test_batches_are_those_of_the_day_they_were_checked(pair: tuple[Objective, Masking]) -> None:
    assert digest(*pair) == GOLDEN[pair]


def test_one_document_is_enough_without_random_pairs() -> None:
    corpus = one_document()
    with pytest.raises(DataError, match="the corpus has 1 document; next-sentence prediction"):
        make_batches("nsp", corpus=corpus).at(0)
    assert make_batches("sop", corpus=corpus).at(0).labels.shape == (8,)
    assert make_batches("none", corpus=corpus).at(0).labels.shape == (0,)


@pytest.mark.parametrize("objective", get_args(Objective))
def test_too_little_text_is_reported_with_advice(objective: Objective) -> None:
    with pytest.raises(DataError, match=r"sequences of 48 tokens, fewer than one batch of 9999; use more text, a smal"):
        make_batches(objective, batch=9999).at(0)
    if objective not in ("nsp", "relation"):  # which need two documents
        with pytest.raises(DataError, match="the corpus gives 0 sequences"):
            make_batches(objective, corpus=Corpus.from_documents([])).at(0)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size is 0; expected at least 1"):
        make_batches(batch=0)
    with pytest.raises(ConfigError, match="static is -1; expected a number of variants, or 0 for new ones each epoch"):
        make_batches(static=-1)
