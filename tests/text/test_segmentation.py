"""Word segmentation: lossless except for whitespace, Chinese by dictionary, aligned with BERT's tokens."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.text import Tokenizer, WordSplitter, encode_words, word_indices
from cloze.text import segmentation as words
from cloze.text.boundaries import is_ideograph
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

TEXTS = [ENGLISH, CHINESE, MIXED, CHINESE + ENGLISH, *strings(1500, seed=21)]


@pytest.fixture(scope="module")
def splitter() -> WordSplitter:
    return WordSplitter()


def check(text: str, spans: list[tuple[int, int]]) -> None:
    """Assert that the spans and the whitespace between them make up the text."""
    place = 0
    for start, end in spans:
        assert place <= start < end <= len(text), text
        assert not text[place:start].strip(), text
        place = end
    assert not text[place:].strip(), text


def test_texts_reassemble(splitter: WordSplitter) -> None:
    for text in (*TEXTS, "", " \n\u3000", "\x00", "中\ud800国 a\ud800b", "\u2028中\u2028"):
        check(text, list(splitter.spans(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He didn't go.", ["He", "didn", "'", "t", "go", "."]),
        ("naïve re\u0301sume\u0301 a\x00b", ["naïve", "re\u0301sume\u0301", "a\x00b"]),
        ("well-known 3.5% a.b@c.org", ["well", "-", "known", "3", ".", "5", "%", "a", ".", "b", "@", "c", ".", "org"]),
        ("他研究自然语言处理。", ["他", "研究", "自然语言", "处理", "。"]),
        ("我来到北京清华大学", ["我", "来到", "北京", "清华大学"]),
        # This word is not in the dictionary; the character model finds it.
        ("他来到了网易杭研大厦", ["他", "来到", "了", "网易", "杭研", "大厦"]),
        ("买T恤,看X光", ["买", "T恤", ",", "看", "X光"]),
        ("用Python3写C++语言", ["用", "Python3", "写", "C", "+", "+", "语言"]),
        ("2024年3.5万", ["2024", "年", "3", ".", "5", "万"]),
        # The segmenter does not support accents; BERT's word stays whole.
        ("café店café", ["café", "店", "café"]),
        ("東京タワー", ["東京", "タワー"]),
    ],
)
def test_words(text: str, expected: list[str], splitter: WordSplitter) -> None:
    assert splitter.words(text) == expected


def test_dictionary(tmp_path: Path) -> None:
    text = "石墨烯导热膜、的是不、卡拉OK、covid-19和云计算平台"
    path = tmp_path / "user.txt"
    path.write_bytes("\ufeff石墨烯导热膜\n\n的是不 \r\n卡拉OK 5 n\ncovid-19\n云计算平台 nz\n云计算 100000\n".encode())
    expected = ["石墨烯导热膜", "、", "的是不", "、", "卡拉OK", "、", "covid-19", "和", "云计算平台"]
    assert WordSplitter().words(text) != expected
    assert WordSplitter(path).words(text) == WordSplitter(str(path)).words(text) == expected
    assert WordSplitter(path.read_text("utf-8-sig").split("\n")).words(text) == expected
    assert WordSplitter(path).words("He had covid-19.") == ["He", "had", "covid-19", "."]
    # Splitters do not share their dictionaries.
    assert "石墨烯导热膜" not in WordSplitter().words(text)


def test_words_without_frequency_are_found() -> None:
    characters = sorted({character for character in CHINESE if is_ideograph(character)})
    entries = [a + b for a, b in zip(characters, characters[7:], strict=False)]
    entries += [a + b for a, b in zip(entries, entries[5:], strict=False)]
    splitter = WordSplitter(entries)
    assert [entry for entry in entries if splitter.words(entry) != [entry]] == []


def test_frequency_decides() -> None:
    assert WordSplitter(["清华 1"]).words("清华大学") == ["清华大学"]
    assert WordSplitter(["清华 1000000000"]).words("清华大学") == ["清华", "大学"]


HIGHEST = "expected a whole number from 1 to 1,000,000,000"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("云计算 5 n x", "unexpected 'x'; expected a word, its frequency and its tag"),
        ("云计算 n 5", "unexpected '5'; expected a word, its frequency and its tag"),
        ("云计算 many5", f"'many5' is not a frequency; {HIGHEST}"),
        ("云计算 -1", f"'-1' is not a frequency; {HIGHEST}"),
        ("云计算 0", f"'0' is not a frequency; {HIGHEST}"),
        ("云计算 1000000001", f"'1000000001' is not a frequency; {HIGHEST}"),
        ("云计算 ３", f"'３' is not a frequency; {HIGHEST}"),
        (
            "卡尔·马克思 3",
            "'卡尔·马克思' can never be found, because texts are split at its punctuation first; "
            "expected ideographs, letters a to z, digits and +#&._%-",
        ),
    ],
)
def test_bad_lines(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "user.txt"
    path.write_text(f"石墨烯\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        WordSplitter(path)
    assert str(error.value) == f"{path}, line 2: {message}"
    with pytest.raises(DataError) as error:
        WordSplitter(["石墨烯", line])
    assert str(error.value) == f"the dictionary, entry 2: {message}"


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "user.txt"
    with pytest.raises(DataError, match="cannot be read"):
        WordSplitter(path)
    path.write_bytes("云计算".encode("gbk"))
    with pytest.raises(DataError, match="not UTF-8 at byte 0; save it as UTF-8"):
        WordSplitter(path)


def test_word_numbers() -> None:
    spans = [(0, 3), (4, 6), (6, 7), (8, 9)]
    offsets = [(0, 0), (0, 2), (2, 3), (6, 7), (8, 9), (0, 0)]
    assert word_indices(offsets, spans) == [-1, 0, 0, 2, 3, -1]
    assert word_indices([], spans) == word_indices([], []) == []
    with pytest.raises(DataError) as error:
        word_indices([*offsets, (10, 12)], iter(spans))
    assert str(error.value) == (
        "a token ends at character 12, after the last word; pass the offsets and the words of the same text"
    )


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_words_are_runs_of_tokens(name: str, splitter: WordSplitter, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for text, encoding in zip(TEXTS, tokenizer.encode_batch(TEXTS, special=False, max_length=9999), strict=True):
        spans = list(splitter.spans(text))
        numbers = word_indices(encoding.offsets, spans)
        assert numbers == sorted(numbers)
        for index, (number, (start, end)) in enumerate(zip(numbers, encoding.offsets, strict=True)):
            assert spans[number][0] <= start < end <= spans[number][1], text
            if not tokenizer.word_starts([encoding.ids[index]])[0]:
                assert number == numbers[index - 1], text


def test_encode_words(uncased: Tokenizer, splitter: WordSplitter) -> None:
    text = "Alice was tired, 作者自云"
    ((ids, numbers),) = encode_words(uncased, splitter, [text])
    assert ids == uncased.encode_ids([text])[0]
    assert [splitter.words(text)[number] for number in dict.fromkeys(numbers)] == splitter.words(text)
    for text, (ids, numbers) in zip(TEXTS, encode_words(uncased, splitter, TEXTS), strict=True):
        assert ids == uncased.encode_ids([text])[0]
        assert len(ids) == len(numbers)


def test_pieces_stay_with_their_word_where_ideographs_are_together(splitter: WordSplitter) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我来", *(f"##{character}" for character in "来到北京a")]
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=True, chinese=False)
    ((ids, numbers),) = encode_words(tokenizer, splitter, ["我来到北京 来a"])
    assert tokenizer.decode(ids) == "我来到北京 来a"
    assert numbers == [0, 0, 0, 0, 0, 3, 3]


def test_long_texts(uncased: Tokenizer, splitter: WordSplitter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MAX_ENCODED", 50_000)
    text = f"{CHINESE}\n{ENGLISH} " * 200
    ((ids, numbers),) = encode_words(uncased, splitter, [text])
    ((short_ids, short_numbers),) = encode_words(uncased, splitter, [f"{CHINESE}\n{ENGLISH} "])
    assert len(text) > 3 * 50_000
    assert ids == short_ids * 200
    count = short_numbers[-1] + 1
    assert numbers == [number + turn * count for turn in range(200) for number in short_numbers]


def test_the_limit_does_not_show_in_ordinary_text(splitter: WordSplitter, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [list(splitter.spans(text)) for text in TEXTS[:4]]
    monkeypatch.setattr(words, "_MAX_CUT", 60)
    assert [list(splitter.spans(text)) for text in TEXTS[:4]] == expected


@pytest.mark.parametrize("unit", ["中", "a", "中a", "a.", "T恤", "中,", "\ud800中"])
def test_endless_runs(unit: str, splitter: WordSplitter, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watch:
        def cut(self, text: str) -> list[str]:
            seen.append(len(text))
            return [text[:1], text[1:]] if len(text) > 1 else [text]

    watched = WordSplitter()
    watched._engine = Watch()
    text = unit * 100_000
    check(text, list(watched.spans(text)))
    assert max(seen, default=0) <= words._MAX_CUT
    assert sum(seen) <= len(text)
    check(text, list(splitter.spans(text)))


def test_threads_and_processes_agree() -> None:
    splitter = WordSplitter(["石墨烯导热膜"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(splitter.words, [CHINESE + "石墨烯导热膜"] * 64))
    assert all(one == found[0] for one in found)
    assert found[0][-1] == "石墨烯导热膜"
    assert pickle.loads(pickle.dumps(splitter)).words(CHINESE + "石墨烯导热膜") == found[0]


def test_the_segmenter_is_loaded_with_the_first_chinese_text() -> None:
    code = (
        "import sys, cloze.text; splitter = cloze.text.WordSplitter(); list(splitter.spans('well-known English'));"
        "assert 'rjieba' not in sys.modules; list(splitter.spans('中文')); assert 'rjieba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_users_words_change_nothing(splitter: WordSplitter) -> None:
    import rjieba

    expected = splitter.words(CHINESE)
    fresh = WordSplitter()
    rjieba.add_word(CHINESE[4:8], 10**8, None)
    assert splitter.words(CHINESE) == fresh.words(CHINESE) == expected
