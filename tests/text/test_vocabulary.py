"""Vocabularies: read, written, and learned to the same bytes every time."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.text import SPECIAL, Tokenizer, learn_pieces, read_vocabulary, write_vocabulary
from cloze.text.merges import learn_merges
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED


def test_files_round_trip(tmp_path: Path) -> None:
    pieces = [*SPECIAL, "a", "##a", "\u2028", "##\u2028", "中", "\u3000"]
    write_vocabulary(tmp_path / "vocab.txt", pieces)
    assert read_vocabulary(tmp_path / "vocab.txt") == pieces
    assert (tmp_path / "vocab.txt").read_bytes().count(b"\n") == len(pieces)


@pytest.mark.parametrize("content", ["\ufeff{}\n", "{}", "{}\n\n\n"])
def test_small_flaws_are_forgiven(content: str, tmp_path: Path) -> None:
    text = content.format("\n".join([*SPECIAL, "a"]))
    for ending in ("\n", "\r\n"):
        (tmp_path / "vocab.txt").write_bytes(text.replace("\n", ending).encode())
        assert read_vocabulary(tmp_path / "vocab.txt") == [*SPECIAL, "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join([*SPECIAL, "a", "b", "a"]), "line 8: 'a' has the line 6 already"),
        ("\n".join([*SPECIAL, "a", "", "b"]), "line 7: '' is not a piece"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na", r"\[MASK\] missing"),
        ("", r"\[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\] missing"),
        (b"[PAD]\n\xff\n", "not UTF-8 at byte 6"),
        (b"a" * 16_000_001, "over 16,000,000 bytes"),
    ],
)
def test_flaws_that_are_not(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_vocabulary(path)
    assert str(path) in str(caught.value)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_vocabulary(tmp_path / "none")


def test_layout_of_a_learned_vocabulary() -> None:
    pieces = learn_pieces([ENGLISH, CHINESE], 400, words=["Waistcoat", "waistcoat-pocket"], minimum_frequency=1)
    assert pieces[:5] == list(SPECIAL)
    assert len(pieces) == len(set(pieces)) == 400
    lengths = [len(piece.removeprefix("##")) for piece in pieces[5:]]
    singles = lengths.index(9)
    assert set(lengths[:singles]) == {1}
    assert 1 not in lengths[singles:]
    assert pieces[5 + singles : 7 + singles] == ["waistcoat", "pocket"]
    assert {"the", "alice", "rabbit", "不", "##a"} <= set(pieces)
    starts = [piece for piece in pieces[5:] if len(piece) == 1 and piece.isascii()]
    assert starts == sorted(starts)


def test_nothing_learned_is_unknown() -> None:
    for lowercase in (True, False):
        pieces = learn_pieces([ENGLISH, MIXED], 2000, lowercase=lowercase, minimum_frequency=1)
        tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=lowercase)
        assert tokenizer.unknown_id not in tokenizer.encode_ids([ENGLISH + MIXED])[0]
        # Letters of the text in any new order are spelled as well.
        assert tokenizer.unknown_id not in tokenizer.encode_ids(["tneps gnihton eht"])[0]


def test_frequent_pieces_come_first() -> None:
    merges = list(learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, _alphabet("lowernstid"), 2))
    # Sennrich et al.'s example: es 9, est 9, lo 7, low 7, then the pieces of the word newest.
    assert merges[:4] == [(9, "##es"), (9, "##est"), (7, "lo"), (7, "low")]
    assert [count for count, _ in merges] == sorted((count for count, _ in merges), reverse=True)


def _alphabet(letters: str) -> list[str]:
    return [*sorted(letters), *sorted(f"##{letter}" for letter in letters)]


def test_repeated_letters_merge_without_overlap() -> None:
    merges = list(learn_merges({"aaaaa": 3}, ["a", "##a"], 1))
    # a ##a ##a ##a ##a -> a ##aa ##aa -> aaa ##aa -> aaaaa
    assert merges == [(9, "##aa"), (3, "aaa"), (3, "aaaaa")]


def test_merges_equal_a_plain_count() -> None:
    """The table of pairs, kept up to date piece by piece, against one that is counted anew each time."""
    counts = Counter(word for text in strings(60, seed=9) for word in text.split() if word.isalpha())
    alphabet = _alphabet("".join(sorted(set("".join(counts)))))
    words = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    order = {piece: number for number, piece in enumerate(alphabet)}
    for found in learn_merges(counts, alphabet, 2):
        while True:
            pairs: Counter[tuple[str, str]] = Counter()
            for word, spelled in words.items():
                for pair in pairwise(spelled):
                    pairs[pair] += counts[word]
            best = min(pairs, key=lambda pair: (-pairs[pair], order[pair[0]], order[pair[1]]))
            piece = best[0] + best[1].removeprefix("##")
            words = {word: _join(spelled, best, piece) for word, spelled in words.items()}
            if piece not in order:
                order[piece] = len(order)
                assert found == (pairs[best], piece)
                break


def _join(spelled: list[str], pair: tuple[str, str], piece: str) -> list[str]:
    joined: list[str] = []
    for part in spelled:
        if joined and (joined[-1], part) == pair:
            joined[-1] = piece
        else:
            joined.append(part)
    return joined


def test_rare_characters_and_ideographs_yield() -> None:
    text = "aaaa bbbb " * 50 + "中" * 60 + "国" * 40 + "é" + "文"
    # Pairs of continued letters occur 100 times and more, 中 60 times, whole words 50 times.
    assert learn_pieces([text], 10, lowercase=False) == [*SPECIAL, "a", "b", "##a", "##b", "##aa"]
    assert "中" in learn_pieces([text], 12, lowercase=False)
    assert "aaaa" not in learn_pieces([text], 12, lowercase=False)
    everything = learn_pieces([text], 100, lowercase=False)
    assert {"中", "国"} <= set(everything)
    assert {"é", "文"}.isdisjoint(everything)
    assert len(everything) < 100


@pytest.mark.parametrize("texts", [[], [""], [" \n\t", "\x00\u200b"]])
def test_no_text(texts: list[str]) -> None:
    with pytest.raises(DataError, match="no words in the text"):
        learn_pieces(texts, 100)


def test_too_small_a_size() -> None:
    with pytest.raises(ConfigError, match="a vocabulary of 30 pieces is too small"):
        learn_pieces([ENGLISH], 30)


def test_progress_is_reported() -> None:
    heard: list[str] = []

    class Listener:
        def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
            heard.append(f"{stage} {done} {total}")

        def say(self, message: str) -> None:
            heard.append(message)

    learn_pieces([ENGLISH] * 10_000, 200, progress=Listener())
    assert heard[0] == "counting 10000 None"
    assert "different words" in heard[1]
    assert heard[-1].startswith("learning pieces ")
    assert heard[-1].split()[-1] == heard[-1].split()[-2]


def test_odd_text_is_survived() -> None:
    pieces = learn_pieces(["x" * 5000, "\ud800 ab ab", *strings(50, seed=2)], 1500)
    assert "ab" in pieces
    assert max(map(len, pieces)) <= 102


PROGRAM = """
import sys
from cloze.text import learn_pieces
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED
pieces = learn_pieces([ENGLISH, CHINESE, MIXED, *strings(200, seed=1)], 1500, words=["rabbit", "zoë"])
sys.stdout.buffer.write("\\n".join(pieces).encode())
"""


def test_same_bytes_in_every_process() -> None:
    outputs = set()
    root = Path(__file__).parents[2]
    for seed, threads in (("0", "1"), ("1", "2"), ("4321", "4"), ("random", "1")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
        }
        run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=environment, check=True)
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert outputs.pop().startswith(b"[PAD]\n[UNK]\n")
