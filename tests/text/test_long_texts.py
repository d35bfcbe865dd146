import random
from itertools import pairwise

import pytest

from cloze.text import Tokenizer, encode_long, window_spans
from tests.text.passages import ENGLISH


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = sorted({word for word in ENGLISH.lower().replace(".", " ").replace(",", " ").split() if word.isalpha()})
    return Tokenizer.from_vocabulary(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=True, max_length=20
    )


def words(tokenizer: Tokenizer, count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(tokenizer.pieces[5:], k=count))


@pytest.mark.parametrize("seed", range(50))
def test_windows_cover_everything_and_fit(seed: int) -> None:
    draw = random.Random(seed)
    length, room, step = draw.randint(0, 300), draw.randint(1, 60), draw.randint(1, 80)
    places = window_spans(length, room, step)
    assert places[0][0] == 0
    assert places[-1][1] == length
    assert all(stop - start <= room for start, stop in places)
    assert sorted({token for start, stop in places for token in range(start, stop)}) == list(range(length))
    assert all(later[0] > earlier[0] for earlier, later in pairwise(places))


@pytest.mark.parametrize("how", ["cut", "head-tail", "windows"])
def test_fitting_texts_are_encoded_alike(tokenizer: Tokenizer, how: str) -> None:
    texts, pairs = [words(tokenizer, 4), "", words(tokenizer, 7, 1)], ["", words(tokenizer, 9), words(tokenizer, 3)]
    assert encode_long(tokenizer, texts, None, how) == [[one] for one in tokenizer.encode_batch(texts)]  # type: ignore[arg-type]
    assert encode_long(tokenizer, texts, pairs, how) == [[one] for one in tokenizer.encode_batch(texts, pairs)]  # type: ignore[arg-type]


def test_head_and_tail_are_kept_and_dropped_tokens_counted(tokenizer: Tokenizer) -> None:
    text = words(tokenizer, 50)
    ids = tokenizer.encode_ids([text])[0]
    ((encoding,),) = encode_long(tokenizer, [text], None, "head-tail")
    assert encoding.ids == [tokenizer.cls_id, *ids[:4], *ids[-14:], tokenizer.sep_id]
    assert encoding.dropped == 32
    assert [text[start:end] for start, end in encoding.offsets[1:-1]] == text.split()[:4] + text.split()[-14:]


def test_the_longer_of_two_gives_its_middle(tokenizer: Tokenizer) -> None:
    first, second = words(tokenizer, 5), words(tokenizer, 40, 1)
    ((encoding,),) = encode_long(tokenizer, [first], [second], "head-tail")
    one, other = (tokenizer.encode_ids([text])[0] for text in (first, second))
    assert encoding.ids == [tokenizer.cls_id, *one, tokenizer.sep_id, *other[:3], *other[-9:], tokenizer.sep_id]


def test_windows_cover_the_whole_text(tokenizer: Tokenizer) -> None:
    text = words(tokenizer, 50)
    ids = tokenizer.encode_ids([text])[0]
    (windows,) = encode_long(tokenizer, [text], None, "windows")
    assert all(len(window.ids) <= 20 and window.dropped == 0 for window in windows)
    assert [window.ids[1:-1] for window in windows] == [ids[start : start + 18] for start in range(0, 41, 9)][:5]


def test_windows_of_the_second_text_all_have_the_first(tokenizer: Tokenizer) -> None:
    first, second = words(tokenizer, 5), words(tokenizer, 40, 1)
    (windows,) = encode_long(tokenizer, [first], [second], "windows")
    one, other = (tokenizer.encode_ids([text])[0] for text in (first, second))
    assert all(window.ids[1:6] == one for window in windows)
    assert windows[0].ids[7:-1] == other[:12]
    assert windows[-1].ids[7:-1] == other[-len(windows[-1].ids[7:-1]) :]
    # A first text that would leave no space is truncated, and the dropped tokens are reported.
    (windows,) = encode_long(tokenizer, [words(tokenizer, 30)], [second], "windows")
    assert all(window.dropped == 22 for window in windows)
    assert all(window.segments.count(1) - 1 <= 9 for window in windows)
