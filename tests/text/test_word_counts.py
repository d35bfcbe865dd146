"""Word counts are exact, use little memory, and do not depend on the number of processes."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze import workers
from cloze.corpus.learn_vocabulary import measure_fit
from cloze.errors import ClozeError
from cloze.progress import Silent
from cloze.text import Tokenizer, learn_pieces, word_counts
from cloze.text import word_counts as counting
from cloze.text.boundaries import replace_surrogates
from cloze.text.word_counts import SortedTables, WordCounter, WordCounts
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

TEXTS = [ENGLISH, CHINESE, MIXED, "a\x0cb a\x85b a\x1fb", "", "\ud800 x\ud800y", *strings(300, seed=11)]


def _count(texts: Iterable[str], lowercase: bool = True, workers: int = 1) -> WordCounts:
    return counting.count_words(texts, lowercase=lowercase, workers=workers, total=None, progress=Silent())


def _plainly(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """Return all words of all texts, directly from the native tokenizer."""
    normalizer, splitter = BertNormalizer(lowercase=lowercase), BertPreTokenizer()
    normal = (normalizer.normalize_str(replace_surrogates(text)) for text in texts)
    return Counter(word for text in normal for word, _ in splitter.pre_tokenize_str(text))


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit tables to a few words, so that a small text overflows them several times."""
    monkeypatch.setattr(word_counts, "MOST_RUNS", 40)
    monkeypatch.setattr(word_counts, "MOST_WORDS", 30)
    monkeypatch.setattr(word_counts, "MOST_TABLES", 3)
    monkeypatch.setattr(counting, "BLOCK", 300)
    monkeypatch.setattr(counting, "FEWEST_BLOCKS", 3)


@pytest.mark.parametrize("lowercase", [True, False])
def test_counts_are_those_of_the_engine(lowercase: bool) -> None:
    expected = _plainly(TEXTS, lowercase)
    counts = _count(TEXTS, lowercase)
    short = {word: count for word, count in expected.items() if len(word) <= 100}
    assert list(counts) == sorted(short.items())
    assert counts.words == expected.total()
    assert counts.different == counts.kept == len(short)
    assert counts.too_long == expected.total() - sum(short.values()) > 0


@pytest.mark.parametrize("lowercase", [True, False])
def test_overflowing_tables_change_nothing(
    lowercase: bool, small_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, merges = list[bytes](), list[int]()
    take, merge = WordCounter._take_table, word_counts._merge

    def noted_table(counter: WordCounter) -> bytes:
        tables.append(take(counter))
        return tables[-1]

    def noted_merge(files: list[IO[bytes]]) -> IO[bytes]:
        merges.append(len(files))
        return merge(files)

    monkeypatch.setattr(WordCounter, "_take_table", noted_table)
    monkeypatch.setattr(word_counts, "_merge", noted_merge)
    counts = _count(TEXTS, lowercase)
    monkeypatch.undo()
    assert counts == _count(TEXTS, lowercase)
    assert len(tables) > 27  # more tables than three levels of three
    assert max(merges[:-1]) == 3
    assert merges[-1] <= 12
    assert all(len(table.splitlines()) < 300 for table in tables)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_nothing(workers: int, small_tables: None) -> None:
    for lowercase in (True, False):
        assert _count(TEXTS, lowercase, workers) == _count(TEXTS, lowercase)
    pieces = learn_pieces(TEXTS, 2000, workers=workers)
    assert pieces == learn_pieces(TEXTS, 2000)


def test_one_worker_is_no_process(small_tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[object]()
    monkeypatch.setattr(counting, "WorkerPool", lambda *words: started.append(words))
    _count(TEXTS, workers=1)
    _count([ENGLISH[:300]], workers=2)  # no processes are started for a small text either
    assert started == []


def test_ideographs_do_not_fill_the_table() -> None:
    draw = random.Random(4)
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 50)]
    counter = WordCounter(lowercase=True)
    for _ in range(20):
        counter.add("。".join("".join(draw.choices(characters, k=20)) for _ in range(100)))
    assert len(counter.runs) < 200  # 2,000 clauses, none of which repeats


def test_endless_line_comes_in_parts() -> None:
    line = "word and another, " * 100_000
    blocks = list(counting._blocks(["before", line, "after"]))
    assert len(blocks) > 4
    assert max(map(len, blocks)) < 2 * counting.BLOCK
    assert dict(_count(["before", line, "after"]))["another"] == 100_000


def test_long_words_do_not_fill_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "MOST_CHARACTERS", 10_000)
    counter = WordCounter(lowercase=True)
    for number in range(100):
        counter.add(f"{number:0999}")
        assert len(counter.runs) <= 11
    assert counter.finish() == b"\t100\n"


@pytest.mark.parametrize(
    ("most", "kept", "least"),
    [
        (7, "abcdefg", 1),
        (6, "abcd", 2),  # e, f and g are left out together: there is space for only two of them
        (4, "abcd", 2),
        (3, "ab", 3),
        (2, "ab", 3),
        (1, "a", 9),
    ],
)
def test_frequent_words_are_chosen(most: int, kept: str, least: int) -> None:
    with SortedTables() as tables:
        tables.add(b"\t5\na\t9\nb\t3\nc\t1\ne\t1\ng\t1\n")
        tables.add(b"c\t1\nd\t2\nf\t1\n")
        counts = tables.choose(most)
    assert "".join(word for word, _ in counts) == kept
    assert (counts.kept, counts.least) == (len(kept), least)
    assert (counts.words, counts.different, counts.too_long) == (24, 7, 5)


def test_ties_are_split_if_necessary() -> None:
    with SortedTables() as tables:
        tables.add(b"".join(b"%b\t1\n" % bytes([letter]) for letter in b"abcdefghij") + b"z\t2\n")
        # All ten ties do not fit, but without them hardly any word would be left, so the first ones are taken.
        assert list(tables.choose(6)) == [*((letter, 1) for letter in "abcde"), ("z", 2)]


def test_full_disk_is_reported(small_tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        ClozeError, match=r"cannot be written there .*\(No space left on device\); free some space or set"
    ):
        _count(TEXTS)


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "import os; from multiprocessing.connection import Connection; Connection(0).recv_bytes(); os._exit(3)",
    ],
)
def test_dying_process_is_reported(
    program: str, small_tables: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(counting, "PROGRAM", program)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes = _watch(monkeypatch)
    with pytest.raises(ClozeError, match=r"ended early \(exit code 3\), .*; try again with fewer --workers"):
        _count(TEXTS, workers=2)
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interrupted", [True, False])
def test_processes_end_with_the_work(
    interrupted: bool, small_tables: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        if interrupted:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes = _watch(monkeypatch)
    if interrupted:
        # Python leaves the signal ignored if it was ignored at start-up, as shells do for background jobs.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            _count(texts(), workers=2)
        signal.signal(signal.SIGINT, before)
    else:
        _count(texts(), workers=2)
    assert [process.returncode is None for process in processes] == [False, False]
    assert list(tmp_path.iterdir()) == []


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the processes that are started from now on."""
    started, start = list[Any](), subprocess.Popen

    def recording(*words: Any, **more: Any) -> Any:
        started.append(start(*words, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recording)
    return started


SCRIPT = """
from cloze.text import learn_pieces
from cloze.text import word_counts as counting
counting.BLOCK, counting.FEWEST_BLOCKS = 1000, 2
print("once")
print(len(learn_pieces(["some words of a text"] * 1000, 30, workers=2)))
"""


def test_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    # Modules in the script's folder or the working directory must not shadow those of the processes.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "re.py").write_text("raise SystemExit('wrong module')", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, env=environment, cwd=tmp_path / "elsewhere", text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["once", "30"]


def test_cores_are_counted() -> None:
    assert 1 <= workers.usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("lowercase", [True, False])
def test_fit_is_that_of_the_tokenizer(lowercase: bool) -> None:
    texts = [*TEXTS[:4], *strings(100, seed=12)]
    pieces = learn_pieces(texts, 900, lowercase=lowercase)
    fit = measure_fit(_count(texts, lowercase), pieces)
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=lowercase)
    words = list(_plainly(texts, lowercase).elements())
    ids = tokenizer.encode_ids(words)
    unknown = sum(found == [tokenizer.unknown_id] for found in ids)
    assert (fit.words, fit.distinct_words) == (len(words), len({word for word in words if len(word) <= 100}))
    assert unknown > 0
    assert fit.unknown == pytest.approx(unknown / len(words))
    assert fit.coverage == pytest.approx(1 - unknown / len(words))
    assert fit.one_piece == pytest.approx((sum(len(found) == 1 for found in ids) - unknown) / len(words))
    assert fit.pieces_per_word == pytest.approx(sum(map(len, ids)) / len(words))
