"""Questions and contexts become windows: no token is lost, and tokens map back to the exact characters."""

import random
from itertools import pairwise

import pytest

from cloze.errors import RequestError
from cloze.tasks.answering.examples import (
    LONGEST_QUESTION,
    NOWHERE,
    Question,
    Questions,
    Reading,
    answer_items,
    read_contexts,
)
from cloze.text import Tokenizer, learn_pieces
from tests.train.made import Listener

LINE = "the old river, house; Garden-gate (morning) letters 1,234 naïve Ärger 猫坐 don't re-read U.S. e\u0301tude"
WORDS = LINE.split()
TOKENIZER = Tokenizer.from_vocabulary(learn_pieces([" ".join(WORDS)] * 3, 90), lowercase=True)


def make_context(draw: random.Random, words: int) -> str:
    return "".join(draw.choice(WORDS) + draw.choice([" ", "  ", "\n", " \u00ad"]) for _ in range(words))


def word_spans(context: str) -> list[tuple[int, int]]:
    """Return the character spans of the words."""
    spans, start = [], 0
    for word in context.replace("\u00ad", " ").split():
        start = context.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


def read(question: str, context: str, length: int, stride: int = 128) -> Reading:
    (reading,) = read_contexts(TOKENIZER.with_max_length(length), [question], [context], stride)
    return reading


@pytest.mark.parametrize("seed", range(40))
def test_every_answer_is_whole_somewhere_and_stands_where_it_stood(seed: int) -> None:
    draw = random.Random(seed)
    length, stride = draw.randint(5, 80), draw.randint(1, 60)
    context = make_context(draw, draw.randint(1, 60))
    question = make_context(draw, draw.randint(0, 30))
    reading = read(question, context, length, stride)
    assert all(len(window.encoding.ids) <= length for window in reading.windows)
    room = length - reading.windows[0].first - 1
    step = max(1, min(stride, room // 2))
    spans = word_spans(context)
    for first in range(len(spans)):
        last = draw.randrange(first, min(len(spans), first + 8))
        span = spans[first][0], spans[last][1]
        start, end = reading.tokens_of(span)
        # Exactly the same characters, because words end where tokens do.
        assert context[reading.offsets[start][0] : reading.offsets[end][1]] == context[slice(*span)]
        rows = Questions([Question("", "", question, context, (context[slice(*span)],), span)])
        items = answer_items(rows, TOKENIZER.with_max_length(length), stride)
        targets = [item.target for item in items]
        if end - start + 1 <= room - step + 1:
            assert any(target != NOWHERE for target in targets)
        for item, target in zip(items, targets, strict=True):
            assert isinstance(target, tuple)
            (encoding,) = item.encodings
            if target != NOWHERE:
                assert {encoding.sources[place] for place in range(target[0], target[1] + 1)} == {1}
                found = context[encoding.offsets[target[0]][0] : encoding.offsets[target[1]][1]]
                assert found == context[slice(*span)]


@pytest.mark.parametrize("seed", range(10))
def test_windows_are_all_of_the_context_and_overlap_by_half_at_least(seed: int) -> None:
    draw = random.Random(seed)
    context = make_context(draw, 80)
    reading = read("the old", context, draw.randint(12, 60), draw.randint(1, 200))
    whole = TOKENIZER.encode_pieces([context])[0]
    seen = set()
    for window in reading.windows:
        begin, stop = window.place
        inside = slice(window.first, window.first + stop - begin)
        assert window.encoding.ids[inside] == whole.ids[begin:stop]
        assert window.encoding.offsets[inside] == whole.offsets[begin:stop]
        assert window.encoding.ids[window.first - 1] == window.encoding.ids[-1] == TOKENIZER.sep_id
        seen |= set(range(begin, stop))
    assert seen == set(range(len(whole)))
    room = max(stop - begin for begin, stop in (window.place for window in reading.windows))
    starts = [window.place[0] for window in reading.windows]
    assert all(after - before <= room // 2 for before, after in pairwise(starts))


def test_stride_is_kept_where_it_leaves_half() -> None:
    reading = read("old", "river " * 300, 100, 10)
    assert [window.place[0] for window in reading.windows][:4] == [0, 10, 20, 30]


def test_part_of_a_word_is_taken_with_the_tokens_that_hold_it() -> None:
    context = "the old garden"
    reading = read("old", context, 40)
    start, end = reading.tokens_of((5, 6))  # within "old"
    assert context[reading.offsets[start][0] : reading.offsets[end][1]] == "old"


def test_answer_without_a_token_is_nowhere() -> None:
    context = "old \u00ad\u00ad river"
    rows = Questions([Question("", "", "the", context, ("\u00ad",), (4, 5))])
    (item,) = answer_items(rows, TOKENIZER.with_max_length(40))
    assert item.target == NOWHERE


def test_questions_without_answer_are_nowhere_in_every_window() -> None:
    items = answer_items(Questions([Question("", "", "the", "old river " * 40)]), TOKENIZER.with_max_length(30))
    assert len(items) > 3
    assert {item.target for item in items} == {NOWHERE}


def test_answers_that_no_window_holds_are_counted() -> None:
    context = "old " * 80
    spans = [(0, 3), (4, 4 * 30), (0, 4 * 80 - 1), None]  # answers of 1, 29 and 80 tokens, and no answer
    rows = Questions([Question("", "", "the", context, (), span) for span in spans])
    listener = Listener()
    items = answer_items(rows, TOKENIZER.with_max_length(40), 4, listener)
    windows = len(items) // len(spans)
    groups = [items[start : start + windows] for start in range(0, len(items), windows)]
    held = [any(item.target != NOWHERE for item in group) for group in groups]
    assert held == [True, True, False, False]
    assert listener.said == [
        "1 of 4 training questions have an answer that no window of 40 tokens contains; they are trained as "
        "unanswerable: use a larger max_length or a smaller stride"
    ]
    answer_items(rows.select([0, 1, 3]), TOKENIZER.with_max_length(40), 4, listener)
    assert len(listener.said) == 1


def test_long_questions_are_cut_and_told() -> None:
    reading = read("river " * 500, "old " * 500, 384)
    tokens = len(TOKENIZER.encode_pieces(["river " * 500])[0])
    assert reading.windows[0].first == LONGEST_QUESTION + 2
    assert {window.encoding.dropped for window in reading.windows} == {tokens - LONGEST_QUESTION}
    # For short sequences, half of the space is reserved for the context.
    assert read("river " * 500, "old " * 500, 33).windows[0].first == 15 + 2


def test_no_room_is_told() -> None:
    with pytest.raises(RequestError, match=r"^length is 4; a question and its context need at least 5 tokens$"):
        read("old", "river", 4)


def test_empty_context_is_one_window() -> None:
    (window,) = read("old", "", 20).windows
    assert window.place == (0, 0)


def test_rows_are_chosen_and_read_without_their_answers() -> None:
    rows = [Question(f"f:{number}", str(number), f"q{number}", f"c{number}") for number in range(4)]
    chosen = Questions(rows, skipped=2).select([3, 1])
    assert (chosen.places, len(chosen), chosen.skipped) == (["f:3", "f:1"], 2, 2)
    assert chosen.documents() == [["q3", "c3"], ["q1", "c1"]]


def test_contexts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_texts: list[str] = []
    encode = Tokenizer.encode_pieces

    def counted(tokenizer: Tokenizer, texts: list[str]) -> object:
        read_texts.extend(texts)
        return encode(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "encode_pieces", counted)
    list(read_contexts(TOKENIZER, ["old", "the", "river"], ["garden", "garden", "house"]))
    assert read_texts.count("garden") == 1
