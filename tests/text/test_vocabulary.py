"""Vocabularies are read, written, and trained reproducibly, byte for byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.progress import Silent
from cloze.text import SPECIAL, Tokenizer, learn_pieces, read_vocabulary, write_vocabulary
from cloze.text.vocabulary import choose_pieces, first_entries
from cloze.text.word_counts import SortedTables, count_words
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
        ("\n".join([*SPECIAL, "a", "b", "a"]), "line 8: 'a' already has the line 6"),
        ("\n".join([*SPECIAL, "a", "", "b"]), "line 7: '' is not a piece"),
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na", r"\[MASK\] missing"),
        ("", r"\[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\] missing"),
        (b"[PAD]\n\xff\n", "not UTF-8 at byte 6"),
        (b"a" * 16_000_001, "larger than 16,000,000 bytes"),
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
        # Words made of the text's letters in another order contain no unknown piece.
        assert tokenizer.unknown_id not in tokenizer.encode_ids(["tneps gnihton eht"])[0]


def test_rare_characters_and_ideographs_yield() -> None:
    text = "aaaa bbbb " * 50 + "中" * 60 + "国" * 40 + "é" + "文"
    # Pairs of continuation letters occur at least 100 times, 中 60 times, whole words 50 times.
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


def test_words_left_out_are_told() -> None:
    messages: list[str] = []

    class Listener(Silent):
        def say(self, message: str) -> None:
            messages.append(message)

    with SortedTables() as tables:
        tables.add(b"ab\t3\nabc\t2\nabd\t2\nb\t1\n")
        counts = tables.choose(3)
    pieces = choose_pieces(
        counts, 20, lowercase=True, words=[], minimum_frequency=1, first=SPECIAL, progress=Listener()
    )
    assert "##c" in pieces
    assert messages == [
        "4 different words, 8 characters and 0 ideographs",
        "pieces are learned from the 3 most frequent words, with counts of 2 or more; the others are ignored",
    ]


def test_layouts() -> None:
    assert first_entries("compact", None) == list(SPECIAL)
    assert first_entries("compact", 2) == [*SPECIAL, "[unused0]", "[unused1]"]
    published = first_entries("published", None)
    assert published[0] == "[PAD]"
    assert published[1:100] == [f"[unused{number}]" for number in range(99)]
    assert published[100:] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert first_entries("published", 101) == [*published, "[unused99]", "[unused100]"]
    with pytest.raises(ConfigError, match="unused is 98; the published layout has 99 unused entries or more"):
        first_entries("published", 98)


def test_layout_changes_places_and_nothing_else() -> None:
    compact = learn_pieces([ENGLISH], 140)
    published = learn_pieces([ENGLISH], 239, first=first_entries("published", None))
    assert published[104:] == compact[5:]
    assert len(published) == 239
    with pytest.raises(ConfigError, match="the unused entries"):
        learn_pieces([ENGLISH], 120, first=first_entries("published", None))
    tokenizer = Tokenizer.from_vocabulary(published, lowercase=True)
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.cls_id, tokenizer.mask_id) == (0, 100, 101, 103)
    # A text cannot produce an unused entry.
    assert "[unused3]" not in tokenizer("[unused3]").tokens


def test_too_small_a_size() -> None:
    with pytest.raises(ConfigError, match="a vocabulary of 30 pieces is too small"):
        learn_pieces([ENGLISH], 30)


def test_progress_is_reported() -> None:
    messages: list[str] = []

    class Listener:
        def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
            messages.append(f"{stage} {done} {total}")

        def say(self, message: str) -> None:
            messages.append(message)

    texts = [ENGLISH] * 2000
    learn_pieces(texts, 200, progress=Listener())
    bytes_read = len("\n".join(texts).encode()) + 1
    counted = [line for line in messages if line.startswith("counting")]
    assert len(counted) > 1
    assert counted[-1] == f"counting words (bytes) {bytes_read} None"
    assert "different words" in messages[len(counted)]
    assert messages[-2].startswith("learning pieces 100 ")
    # Progress reaches the end, regardless of how many pieces were learned.
    assert messages[-1].startswith("learning pieces ")
    assert messages[-1].split()[-1] == messages[-1].split()[-2]
    messages.clear()
    total = bytes_read + 100
    count_words(texts, lowercase=True, workers=1, total=total, progress=Listener())
    assert messages[-1] == f"counting words (bytes) {total} {total}"
    assert [line.split()[-2] for line in messages].count(str(total)) == 1


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
