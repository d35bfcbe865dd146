"""Vocabulary coverage of a text: compared with a plain count, and its forecast compared with the result."""

import random
from collections import Counter
from pathlib import Path

import pytest

from cloze.text import SPECIAL, Tokenizer
from cloze.text.boundaries import MAX_WINDOW
from cloze.text.encoding import RUNGS
from cloze.text.oov import coverage
from cloze.text.oov.coverage import Candidate, Coverage, measure_coverage, unknown_note
from cloze.text.oov.extension import Additions, WordRow, extend_tokenizer
from tests.text.generated import strings
from tests.text.laddered import drawn_ladder, drawn_text, drawn_tokenizer, extended
from tests.text.passages import CHINESE, ENGLISH, MIXED

PIECES = [*SPECIAL, "the", "cat", "##s", "sat", "co", "##vid", "##z", "1", "##9", ".", "北", "s", "##a", "##r"]
PLAIN = Tokenizer.from_vocabulary(PIECES, lowercase=True)


def slow_count(texts: list[str], tokenizer: Tokenizer) -> tuple[int, int, Counter[str]]:
    """Count words, tokens and rungs, text by text."""
    words = [word for text in texts for word in tokenizer.words(tokenizer(text, max_length=10**6), text)]
    return len(words), sum(len(word.ids) for word in words), Counter(word.rung for word in words)


def with_words(tokenizer: Tokenizer, found: Coverage, count: int) -> Tokenizer:
    rows = [WordRow("forecast", candidate.word) for candidate in found.candidates[:count]]
    return extend_tokenizer(tokenizer, Additions(words=rows)).tokenizer


def check(texts: list[str], tokenizer: Tokenizer) -> Coverage:
    found = measure_coverage(texts, tokenizer, minimum=1)
    words, tokens, counted = slow_count(texts, tokenizer)
    assert (found.words, found.tokens) == (words, tokens)
    assert found.rungs == {rung: counted[rung] for rung in RUNGS}
    assert found.unknown_rate == counted["unknown"] / max(words, 1)
    assert found.pieces_per_word == tokens / max(words, 1)
    assert sum(count for _, count in found.unknown) == counted["unknown"]
    assert [one.saves for one in found.candidates] == sorted((one.saves for one in found.candidates), reverse=True)
    assert len({one.word for one in found.candidates}) == len(found.candidates)
    return found


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_counts_and_forecasts_on_all_kinds_of_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    texts = [*strings(300, seed=51), ENGLISH, CHINESE, MIXED]
    found = check(texts, tokenizer)
    assert len(found.candidates) > 200
    for count in (1, 20, len(found.candidates)):
        after = measure_coverage(texts, with_words(tokenizer, found, count))
        assert (after.words, after.pieces_per_word) == (found.words, found.pieces_per_word_with(count))


@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_counts_and_forecasts_with_rungs_on(seed: int, characters: bool) -> None:
    source = random.Random(seed)
    tokenizer = drawn_ladder(source, drawn_tokenizer(source), characters=characters)
    texts = [drawn_text(source, [*tokenizer.settings.ladder.words, "abc"]) for _ in range(100)]
    found = check(texts, tokenizer)
    for count in (1, 3, len(found.candidates)):
        after = measure_coverage(texts, with_words(tokenizer, found, count))
        assert after.pieces_per_word == found.pieces_per_word_with(count)
        assert after.words == found.words


def test_candidates_worth_adding() -> None:
    text = "covid COVID cats cats cats sars sars 19 19 19 19 鼠 鼠 ☃☃ ☃☃ the cat sat ."
    found = measure_coverage([text, ""], PLAIN, minimum=2)
    assert found.candidates == [
        Candidate("sars", 2, 4, 6),
        Candidate("cats", 3, 2, 3),
        Candidate("covid", 2, 2, 2),
        Candidate("鼠", 2, 1, 2),  # becomes [UNK], which is worse than any number of pieces
    ]
    assert found.unknown == [("☃☃", 2), ("鼠", 2)]
    assert [one.word for one in measure_coverage([text], PLAIN, minimum=3).candidates] == ["cats"]
    assert measure_coverage([text], extended(PLAIN, ["sars"]), minimum=2).candidates[0].word == "cats"


def test_entities_are_not_worth_adding() -> None:
    found = measure_coverage(["covid cats covid"], extended(PLAIN, entities=[("covid", "cat")]), minimum=1)
    assert [one.word for one in found.candidates] == ["cats"]
    assert found.rungs["entity"] == 2


def test_no_text() -> None:
    found = measure_coverage(["", " "], PLAIN)
    assert (found.words, found.pieces_per_word, found.unknown_rate, found.candidates) == (0, 0, 0, [])
    assert found.pieces_per_word_with(5) == 0


def test_lines_without_end_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "covid the cats. " * (3 * MAX_WINDOW // 16)
    expected = measure_coverage(["covid the cats. "] * (3 * MAX_WINDOW // 16), PLAIN)
    sizes = []
    encode = Tokenizer.encode_pieces

    def recording(tokenizer: Tokenizer, texts: list[str]) -> object:
        sizes.append(sum(map(len, texts)))
        return encode(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "encode_pieces", recording)
    monkeypatch.setattr(coverage, "_BATCH_CHARACTERS", MAX_WINDOW)
    assert measure_coverage([text], PLAIN) == expected
    assert max(sizes) <= 2 * MAX_WINDOW


@pytest.mark.parametrize("before", [0, 1, 2])
def test_ideographs_that_are_no_words_of_their_own_are_not_cut(before: int) -> None:
    """A block may end at a letter, an ideograph or a space without splitting a word."""
    together = Tokenizer.from_vocabulary([*SPECIAL, "a", "##北"], lowercase=True, chinese=False)
    found = measure_coverage(["a " * before + "a北 " * (MAX_WINDOW // 2)], together)
    assert found.rungs == dict.fromkeys(RUNGS, 0) | {"word": before, "pieces": MAX_WINDOW // 2}


def test_progress_is_reported() -> None:
    progress_calls: list[tuple[str, int]] = []

    class Listener:
        def say(self, text: str) -> None: ...

        def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
            progress_calls.append((stage, done))

    measure_coverage(["the cat"] * 3, PLAIN, progress=Listener())
    assert progress_calls == [("characters read", 21)]


def test_published_vocabulary(minilm: Tokenizer, minilm_folder: Path) -> None:
    found = check([ENGLISH, MIXED], minilm)
    assert found.pieces_per_word > 1
    assert found.pieces_per_word_with(10**6) < found.pieces_per_word


UNFIT = "今天天气很好"


def test_note_on_a_vocabulary_that_does_not_fit() -> None:
    note = unknown_note(PLAIN, ["the cat sat", UNFIT])
    assert note == (
        "66.7% of the tokens are [UNK], which the model cannot tell apart (天, 今, 气, 很, 好; the vocabulary lacks "
        "most Chinese characters): use a model whose vocabulary fits these texts, or add words with cloze extend"
    )


def test_note_on_a_script_within_other_text() -> None:
    plain = "the cat sat . " * 10
    assert "lacks most Chinese characters" in (unknown_note(PLAIN, [plain + "天"]) or "")
    # The vocabulary has most characters of this script.
    assert unknown_note(PLAIN, [plain + "北 北 天"]) is None
    # Symbols do not belong to any script, and a few of them do not cause a warning.
    assert unknown_note(PLAIN, [plain + "☃"]) is None
    assert "7.0% of the tokens are [UNK], which the model cannot tell apart (☃):" in (
        unknown_note(PLAIN, [plain + "☃ ☃ ☃"]) or ""
    )


def test_no_note_where_nothing_is_unknown() -> None:
    assert unknown_note(PLAIN, ["the cat sat"]) is None
    assert unknown_note(PLAIN, []) is None
    assert unknown_note(PLAIN, [""]) is None


def test_sample_is_spread_over_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "_SAMPLED_TEXTS", 2)
    assert (unknown_note(PLAIN, ["the cat", "天", UNFIT]) or "").startswith("75.0%")
