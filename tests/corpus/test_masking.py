from math import sqrt

import numpy as np
import pytest

from cloze.corpus.masking import (
    HIDDEN,
    KEPT,
    NO_SIMILAR,
    REPLACED,
    STREAMS,
    Masked,
    Masker,
    span_boundaries,
)
from cloze.corpus.sampling import Ids, Sequences
from cloze.corpus.settings import MaskSettings
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError
from cloze.text import Tokenizer
from tests.corpus.made_corpora import ENDINGS, FIRST_ENDING, FIRST_WORD, WORDS, made_tokenizer

TOKENIZER = made_tokenizer()
# Every second word has three similar words: those that follow it in the vocabulary.
SIMILAR: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (FIRST_WORD + n,): tuple((FIRST_WORD + n + k,) for k in (1, 2, 3)) for n in range(0, WORDS - 3, 2)
}
PAIRS: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (FIRST_WORD + n, FIRST_ENDING + m): ((FIRST_WORD + n + 1, FIRST_ENDING + m),)
    for n in range(0, WORDS - 1, 2)
    for m in range(ENDINGS)
}
TABLES = WordTables(entities=((FIRST_WORD, FIRST_WORD + 1),), similar=SIMILAR | PAIRS)


def make_sequences(rows: int, width: int = 128, ends: float = 0.25, seed: int = 0) -> Sequences:
    generator = np.random.default_rng(seed)
    free = np.ones((rows, width), bool)
    free[:, [0, -1]] = False
    starts = (generator.random(free.shape) >= ends) | ~free
    starts[:, 1] = True
    words = generator.integers(FIRST_WORD, FIRST_WORD + WORDS, free.shape)
    endings = generator.integers(FIRST_ENDING, FIRST_ENDING + ENDINGS, free.shape)
    ids = np.where(starts, words, endings)
    ids[:, 0], ids[:, -1] = TOKENIZER.cls_id, TOKENIZER.sep_id
    return Sequences(ids, np.zeros_like(ids), np.full(rows, width), free, starts)


def run(
    masking: str, sequences: Sequences, *, seed: int = 0, tokenizer: Tokenizer = TOKENIZER, **settings: object
) -> Masked:
    masks = MaskSettings(masking, **settings)  # type: ignore[arg-type]
    draws = np.random.default_rng(seed).random((len(sequences.ids), STREAMS, sequences.ids.shape[1]))
    return Masker(tokenizer, masks, TABLES)(sequences, draws)


def seen_of(masked: Masked) -> Ids:
    return masked.ids.reshape(-1)[masked.positions]


def within(count: int, total: int, share: float) -> bool:
    return abs(count - total * share) < 4 * sqrt(total * share * (1 - share))


@pytest.mark.parametrize("masking", ["token", "word", "ngram", "entity"])
def test_tokens_meet_their_fates_one_by_one(masking: str) -> None:
    sequences = make_sequences(10_000)
    masked = run(masking, sequences)
    total, seen = len(masked.positions), seen_of(masked)
    assert total > 180_000
    for fate, share in ((HIDDEN, 0.8), (REPLACED, 0.1), (KEPT, 0.1)):
        assert within(int((masked.fates == fate).sum()), total, share)
    assert ((seen == TOKENIZER.mask_id) == (masked.fates == HIDDEN)).all()
    assert (seen == masked.targets)[masked.fates == KEPT].all()
    # Neighbouring tokens are decided independently, even within a word.
    beside = np.diff(masked.positions) == 1
    alike = (masked.fates[1:] == masked.fates[:-1])[beside]
    assert within(int(alike.sum()), len(alike), 0.8**2 + 0.1**2 + 0.1**2)
    # Everything that was not selected is unchanged.
    changed = np.flatnonzero(masked.ids != sequences.ids)
    assert np.isin(changed, masked.positions).all()
    assert (masked.targets == sequences.ids.reshape(-1)[masked.positions]).all()
    assert masked.boundaries is None


def test_random_words_are_any_ordinary_ones() -> None:
    masked = run("token", make_sequences(10_000), mix=(0.0, 1.0, 0.0))
    words, counts = np.unique(seen_of(masked), return_counts=True)
    assert words.tolist() == list(range(FIRST_WORD, TOKENIZER.size))
    assert counts.max() < 1.5 * counts.mean()


def test_special_and_unused_entries_are_no_words() -> None:
    pieces = [TOKENIZER.pieces[number] for number in TOKENIZER.ordinary_ids]
    assert pieces == TOKENIZER.pieces[FIRST_WORD:]
    added = Tokenizer.from_vocabulary([*TOKENIZER.pieces, "[unused2]", "unused"], lowercase=True)
    assert [added.pieces[number] for number in added.ordinary_ids[-2:]] == ["##e299", "unused"]


@pytest.mark.parametrize(("mix", "fate"), [((1, 0, 0), HIDDEN), ((0, 1, 0), REPLACED), ((0, 0, 1), KEPT)])
@pytest.mark.parametrize("masking", ["token", "span"])
def test_fates_can_be_one_alone(masking: str, mix: tuple[float, float, float], fate: int) -> None:
    assert (run(masking, make_sequences(50), mix=mix).fates == fate).all()


def test_span_has_one_fate() -> None:
    masked = run("span", make_sequences(10_000))
    assert masked.boundaries is not None
    spans = np.cumsum(masked.boundaries[:, 2] == 0) - 1
    firsts = np.flatnonzero(masked.boundaries[:, 2] == 0)
    assert (masked.fates == masked.fates[firsts][spans]).all()
    for fate, share in ((HIDDEN, 0.8), (REPLACED, 0.1), (KEPT, 0.1)):
        assert within(int((masked.fates[firsts] == fate).sum()), len(firsts), share)
    # The words of a replaced span are drawn independently.
    seen = seen_of(masked)
    inside = (masked.fates[1:] == REPLACED) & (np.diff(spans) == 0)
    assert (seen[1:] == seen[:-1])[inside].mean() < 0.01


def test_what_stands_around_a_span_is_not_chosen() -> None:
    sequences = make_sequences(2000)
    masked = run("span", sequences, rate=0.4)  # with a high rate, many spans are adjacent
    assert masked.boundaries is not None
    before, behind, place = masked.boundaries.T
    assert not np.isin(before, masked.positions).any()
    assert not np.isin(behind, masked.positions).any()
    assert (masked.positions == before + 1 + place).all()
    assert (masked.positions < behind).all()
    width = sequences.ids.shape[1]
    assert (before // width == behind // width).all()


def test_boundaries_of_spans() -> None:
    assert span_boundaries(np.array([3, 4, 5, 9, 11, 12])).tolist() == [
        [2, 6, 0],
        [2, 6, 1],
        [2, 6, 2],
        [8, 10, 0],
        [10, 13, 0],
        [10, 13, 1],
    ]
    assert span_boundaries(np.zeros(0, np.int64)).shape == (0, 3)


def heads_of(sequences: Sequences, masked: Masked) -> Ids:
    starts = np.flatnonzero(sequences.starts)
    return starts[np.searchsorted(starts, masked.positions, side="right") - 1]


def test_correction_never_shows_a_mask_and_decides_by_words() -> None:
    sequences = make_sequences(10_000)
    masked = run("correction", sequences)
    assert not (masked.ids == TOKENIZER.mask_id).any()
    heads = heads_of(sequences, masked)
    firsts = np.flatnonzero(np.diff(heads, prepend=-1))
    words = np.cumsum(np.diff(heads, prepend=-1) != 0) - 1
    assert (masked.fates == masked.fates[firsts][words]).all()
    fates = masked.fates[firsts]
    assert within(int(np.isin(fates, [HIDDEN, NO_SIMILAR]).sum()), len(fates), 0.8)
    assert within(int((fates == REPLACED).sum()), len(fates), 0.1)
    assert within(int((fates == KEPT).sum()), len(fates), 0.1)


def test_similar_words_are_those_of_the_table() -> None:
    sequences = make_sequences(2000)
    masked = run("correction", sequences)
    seen, heads = seen_of(masked), heads_of(sequences, masked)
    known = unknown = 0
    found = set()
    for word in np.split(np.arange(len(heads)), np.flatnonzero(np.diff(heads)) + 1):
        before, after = tuple(masked.targets[word].tolist()), tuple(seen[word].tolist())
        fate = masked.fates[word[0]]
        if fate == HIDDEN:
            assert after in TABLES.similar[before]
            known += 1
            found.add((TABLES.similar[before].index(after), len(before)))
        elif fate == NO_SIMILAR:
            assert before not in TABLES.similar
            unknown += 1
        elif fate == KEPT:
            assert before == after
    assert min(known, unknown) > 5000
    assert found == {(0, 1), (1, 1), (2, 1), (0, 2)}  # every similar word occurs


def test_random_words_of_correction_have_the_same_pieces() -> None:
    sequences = make_sequences(2000)
    masked = run("correction", sequences, mix=(0.0, 1.0, 0.0))
    is_ending = masked.targets >= FIRST_ENDING
    seen = seen_of(masked)
    assert ((seen >= FIRST_ENDING) == is_ending).all()
    assert len(np.unique(seen[is_ending])) == ENDINGS
    assert len(np.unique(seen[~is_ending])) == WORDS


def test_rows_do_not_look_at_each_other() -> None:
    sequences = make_sequences(40)
    draws = np.random.default_rng(0).random((40, STREAMS, 128))
    for masking in ("token", "word", "ngram", "span", "entity", "correction"):
        masker = Masker(TOKENIZER, MaskSettings(masking), TABLES)
        whole = masker(sequences, draws).ids
        for rows in (slice(0, 1), slice(7, 29)):
            names = ("ids", "segments", "lengths", "free", "starts")
            part = Sequences(*(getattr(sequences, name)[rows] for name in names))
            assert (masker(part, draws[rows]).ids == whole[rows]).all()


@pytest.mark.parametrize("masking", ["token", "word", "span", "correction"])
def test_sequence_without_anything_to_choose_is_left_alone(masking: str) -> None:
    sequences = make_sequences(3)
    bare = Sequences(
        sequences.ids, sequences.segments, sequences.lengths, np.zeros_like(sequences.free), sequences.starts
    )
    masked = run(masking, bare)
    assert len(masked.positions) == 0
    assert (masked.ids == bare.ids).all()


def test_tables_that_are_needed_are_asked_for() -> None:
    with pytest.raises(
        ConfigError, match="masking is entity, but there are no entities; give a file of them with --ent"
    ):
        Masker(TOKENIZER, MaskSettings("entity"), WordTables())
    with pytest.raises(
        ConfigError, match="masking is correction, but no similar words are known; give a file with --sim"
    ):
        Masker(TOKENIZER, MaskSettings("correction"), WordTables())


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan")])
def test_rate_out_of_bounds_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"mask rate is {rate}; expected a fraction between 0 and 1"):
        MaskSettings(rate=rate)


@pytest.mark.parametrize("mix", [(0.8, 0.1, 0.2), (1.1, -0.1, 0.0), (0.9, 0.1), (float("nan"), 0.5, 0.5)])
def test_mix_that_is_none_is_refused(mix: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match=r"mask mix is \(.*\); expected three fractions that add up to 1"):
        MaskSettings(mix=mix)


def test_other_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"masking is 'words'; did you mean 'word'\?"):
        MaskSettings("words")  # type: ignore[arg-type]
    for ngrams in ((), (0.5, 0.4), (1.5, -0.5)):
        with pytest.raises(
            ConfigError, match=r"ngrams is \(.*\); expected fractions that add up to 1, such as 0.4 0.3"
        ):
            MaskSettings(ngrams=ngrams)
    for chance in (0.0, 1.0):
        with pytest.raises(
            ConfigError, match=f"geometric is {chance}; expected a probability between 0 and 1, such as 0.2"
        ):
            MaskSettings(geometric=chance)
    with pytest.raises(ConfigError, match="longest is 0; expected at least 1 word"):
        MaskSettings(longest=0)
