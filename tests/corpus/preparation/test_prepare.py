import json
import lzma
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import cloze.corpus.preparation.prepare as module
import cloze.corpus.preparation.shard_maker as making
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.preparation.shard_maker import SplitWriter
from cloze.corpus.preparation.shard_plan import ByteMeter, id_type
from cloze.corpus.settings import EngineSettings, PrepareSettings
from cloze.corpus.shards import Corpus, read_manifest, verify_corpus
from cloze.errors import ClozeError, ConfigError, DataError
from cloze.progress import Interrupted
from cloze.text import Tokenizer, split_sentences
from cloze.text.segmentation import WordSplitter, encode_words
from tests.corpus.texts import as_text, make_documents
from tests.text.generated import strings
from tests.text.passages import ENGLISH

SHARDS = PrepareSettings(0.2, shard_size=0.005)


def documents_of(corpus: Corpus) -> list[list[list[int]]]:
    """Return ids by sentence by document."""
    return [
        [
            corpus.read(corpus.sentences[sentence], corpus.sentences[sentence + 1]).tolist()
            for sentence in range(corpus.documents[document], corpus.documents[document + 1])
        ]
        for document in range(corpus.document_count)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def several(text: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many shards, written by one process."""
    folder = tmp_path_factory.mktemp("several") / "data"
    return prepare([text], vocabulary, folder, settings=SHARDS, engine=EngineSettings(workers=1))


def test_every_sentence_is_what_the_tokenizer_makes_of_it(prepared: Path, tokenizer: Tokenizer) -> None:
    expected = [[tokenizer(sentence, special=False).ids for sentence in document] for document in make_documents(200)]
    train, held_out = (documents_of(Corpus.open(prepared, split)) for split in ("train", "held_out"))
    # Both splits keep the order of the text; together they are complete, and they share no document.
    assert len(train) + len(held_out) == 200
    assert [document for document in expected if document in train] == train
    assert [document for document in expected if document in held_out] == held_out
    assert 20 <= len(held_out) <= 60  # a fifth of 200, give or take 3.5 standard deviations


def test_words_start_where_they_do(prepared: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus.open(prepared)
    ids = corpus.read(0, corpus.token_count).tolist()
    assert corpus.word_starts(0, corpus.token_count).tolist() == tokenizer.word_starts(ids)


def test_counts_are_in_the_manifest(prepared: Path, tokenizer: Tokenizer) -> None:
    for split, facts in read_manifest(prepared)["splits"].items():
        corpus = Corpus.open(prepared, split)
        ids = corpus.read(0, corpus.token_count)
        assert facts == {
            "documents": corpus.document_count,
            "sentences": len(corpus.sentences) - 1,
            "tokens": len(ids),
            "words": int(corpus.word_starts(0, len(ids)).sum()),
            "unknown": int((ids == tokenizer.unknown_id).sum()),
        }


def test_chinese_words_are_the_segmenters_and_the_users(tmp_path: Path) -> None:
    text = "我来到北京清华大学。云计算模型很好。Hello 北京！"
    tokenizer = Tokenizer.from_vocabulary(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(text) - {" "}), "hello"], lowercase=True
    )
    tokenizer.save(tmp_path)
    (tmp_path / "text.txt").write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("云计算模型\n", encoding="utf-8")
    found = {}
    for name, words in {"plain": None, "own": tmp_path / "words.txt"}.items():
        folder = prepare(
            [tmp_path / "text.txt"], tmp_path, tmp_path / name, settings=PrepareSettings(held_out=0, words=words)
        )
        corpus = Corpus.open(folder)
        sentences = ["我来到北京清华大学。", "云计算模型很好。", "Hello 北京！"]
        numbers = [found for _, found in encode_words(tokenizer, WordSplitter(words), sentences)]
        expected = [first != second for each in numbers for first, second in zip([-9, *each], each, strict=False)]
        found[name] = corpus.word_starts(0, corpus.token_count).tolist()
        assert found[name] == expected
        assert not (folder / "words.txt").exists()
    assert sum(found["own"]) < sum(found["plain"]) < len(found["plain"])
    with pytest.raises(DataError, match=r"prepared with other settings \(words differ\)"):
        prepare([tmp_path / "text.txt"], tmp_path, tmp_path / "own", settings=PrepareSettings(held_out=0))


def test_formats_and_compression_do_not_matter(text: Path, vocabulary: Path, prepared: Path, tmp_path: Path) -> None:
    rows = [paragraph for paragraph in text.read_text(encoding="utf-8").split("\n\n") if paragraph.strip()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text.read_bytes()))
    parquet.write_table(pyarrow.table({"body": rows}), tmp_path / "a.parquet", row_group_size=17)
    everything = prepare([text], vocabulary, tmp_path / "all", settings=PrepareSettings(0))
    expected = documents_of(Corpus.open(everything))
    for name in ("a.jsonl", "a.txt.xz", "a.parquet"):
        settings = PrepareSettings(0, text="body", shard_size=0.005)
        folder = prepare([tmp_path / name], vocabulary, tmp_path / f"data-{name}", settings=settings)
        assert documents_of(Corpus.open(folder)) == expected
        assert len(read_manifest(folder)["shards"]) > 5


def test_bad_rows_stop_or_are_counted(vocabulary: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "The old river."}\nno\n{"text": "A small house."}\nno\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a.jsonl:2: not valid JSON"):
        prepare([path], vocabulary, tmp_path / "data", settings=PrepareSettings(0))
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]
    folder = prepare([path], vocabulary, tmp_path / "data", settings=PrepareSettings(0, on_bad_row="skip"))
    assert read_manifest(folder)["bad_rows"] == 2
    assert Corpus.open(folder).document_count == 2


def test_split_follows_from_the_seed_and_the_place_alone(
    text: Path, vocabulary: Path, prepared: Path, several: Path, tmp_path: Path
) -> None:
    for split in ("train", "held_out"):
        assert documents_of(Corpus.open(several, split)) == documents_of(Corpus.open(prepared, split))
    again = prepare([text], vocabulary, tmp_path / "again", settings=PrepareSettings(0.2))
    assert contents(again) == contents(prepared)
    other = prepare([text], vocabulary, tmp_path / "other", settings=PrepareSettings(0.2, seed=1))
    assert documents_of(Corpus.open(other, "held_out")) != documents_of(Corpus.open(prepared, "held_out"))


def test_nothing_held_out_is_an_empty_split(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data", settings=PrepareSettings(0))
    assert Corpus.open(folder, "held_out").document_count == 0
    assert Corpus.open(folder, "held_out").read(0, 0).tolist() == []
    assert Corpus.open(folder).document_count == 200


def test_a_line_of_megabytes(vocabulary: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    sentence = "The old small river house keeps silver music. "
    (tmp_path / "long.txt").write_text("One.\n\n" + sentence * 70_000, encoding="utf-8")
    folder = prepare([tmp_path / "long.txt"], vocabulary, tmp_path / "data", settings=PrepareSettings(0))
    corpus = Corpus.open(folder)
    (expected,) = tokenizer.encode_ids([sentence])
    assert (corpus.document_count, len(corpus.sentences) - 1) == (2, 70_001)
    tokens = corpus.read(int(corpus.sentences[1]), corpus.token_count).reshape(-1, len(expected))
    assert (tokens == expected).all()


def test_what_is_not_split_is_what_the_splitter_would_leave_whole() -> None:
    draw = random.Random(0)
    single = making._SINGLE
    letters = "ab Z09,;:'()-‘’“”\"—– "
    noise = ("".join(draw.choices(letters, k=draw.randint(1, 30))) + draw.choice(".!? ") for _ in range(20_000))
    texts = [text.strip() for text in (*noise, *strings(2000, seed=5), *split_sentences(ENGLISH), "x." * 99, "(a) b.)")]
    found = [text for text in texts if text and single.fullmatch(text)]
    assert len(found) > 2000
    assert [text for text in found if split_sentences(text) != [text]] == []
    for text in ("One. Two.", "One.\nTwo", "Mr. Smith", "是。", "One… two", "“One!” two", "", "x.y"):
        assert not single.fullmatch(text)
    assert single.fullmatch("“They came,” he said; and they went (home) again.")


# Several processes


@pytest.mark.parametrize("duplicates", ["keep", "near"])
def test_workers_do_not_matter(text: Path, vocabulary: Path, several: Path, tmp_path: Path, duplicates: Any) -> None:
    settings = PrepareSettings(0.2, shard_size=0.005, duplicates=duplicates)
    folders = [
        prepare([text], vocabulary, tmp_path / str(number), settings=settings, engine=EngineSettings(workers=number))
        for number in (1, 3)
    ]
    assert contents(folders[0]) == contents(folders[1])
    assert (contents(folders[1]) == contents(several)) == (duplicates == "keep")
    assert verify_corpus(folders[1]) > 0


class Listener:
    """A listener that stores messages and progress."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.advanced: list[tuple[str, int, int | None]] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        self.advanced.append((stage, done, total))

    def say(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def killing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kill the process that writes shard 3 the given number of times."""

    def arrange(times: int) -> None:
        program = f"""
import os, signal
from pathlib import Path
from cloze.corpus.preparation.shard_maker import PreparationRunner, ShardMaker
from cloze.workers import serve
make = ShardMaker.make
def killing_make(maker, part, report):
    mark = Path({str(tmp_path / "deaths")!r})
    deaths = len(mark.read_text()) if mark.exists() else 0
    if part == 3 and deaths < {times}:
        mark.write_text("x" * (deaths + 1))
        partial = maker._folder / "shards" / f"00003.{{os.getpid()}}.tmp"
        partial.mkdir()
        partial.joinpath("half").write_text("a shard")
        report(300_000)
        os.kill(os.getpid(), signal.SIGKILL)
    make(maker, part, report)
ShardMaker.make = killing_make
serve(PreparationRunner())
"""
        monkeypatch.setattr(module, "PROGRAM", program)

    return arrange


def test_killed_worker_is_told_and_replaced(
    text: Path,
    vocabulary: Path,
    several: Path,
    tmp_path: Path,
    killing: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killing(2)
    listener, added, add = Listener(), list[int](), ByteMeter.add

    def note(meter: ByteMeter, count: int) -> None:
        if meter._stage == "preparing (bytes)":
            added.append(count)
        add(meter, count)

    monkeypatch.setattr(ByteMeter, "add", note)
    engine = EngineSettings(workers=2)
    folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=engine, progress=listener)
    assert listener.said == ["shard 00003: its process died (exit code -9); another process repeats the task"] * 2
    assert contents(folder) == contents(several)
    # The bytes of dead processes are subtracted: the final total is the size of the text.
    size = text.stat().st_size
    assert (sum(added), added.count(300_000), added.count(-300_000)) == (size, 2, 2)
    assert listener.advanced[-1] == ("preparing (bytes)", size, size)


def test_shard_that_kills_all_its_workers_stops_the_work_and_the_command_goes_on(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, killing: Callable[[int], None]
) -> None:
    killing(3)
    engine, listener = EngineSettings(workers=2), Listener()
    message = r"shard 00003: 3 processes died during this task, the last with exit code -9.*re-run the command"
    with pytest.raises(ClozeError, match=message):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=engine)
    finished = times(tmp_path / "data.partial" / "shards" / "00000")
    assert finished
    folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=engine, progress=listener)
    assert listener.said[0].startswith("resuming: ")
    assert contents(folder) == contents(several)
    after = times(tmp_path / "data" / "shards" / "00000")
    assert sorted(after.values()) == sorted(finished.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "deaths"]


def test_errors_of_workers_are_those_of_one_process(vocabulary: Path, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(b"fine\n" * number + b"caf\xe9\n")
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"\d\.txt:\d: not valid UTF-8 at byte 3"):
            prepare(
                paths,
                vocabulary,
                tmp_path / "data",
                settings=PrepareSettings(shard_size=1e-6),
                engine=EngineSettings(workers=workers),
            )


def test_defects_of_workers_are_told(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"from cloze.corpus.preparation import shard_maker\nshard_maker.survey = None{module.PROGRAM}"
    monkeypatch.setattr(module, "PROGRAM", program)
    with pytest.raises(RuntimeError, match=r"reading .*text.txt: TypeError"):
        prepare([text, text], vocabulary, tmp_path / "data", engine=EngineSettings(workers=2))


# Interrupted and resumed work


@contextmanager
def stopped_at(part: int, monkeypatch: pytest.MonkeyPatch, stop: Callable[[], object]) -> Iterator[None]:
    make = making.ShardMaker.make

    def disturbed(maker: making.ShardMaker, number: int, report: Any = lambda _: None) -> None:
        if number == part:
            stop()
        make(maker, number, report)

    with monkeypatch.context() as patch:
        patch.setattr(making.ShardMaker, "make", disturbed)
        yield


def test_a_text_that_changes_meanwhile_is_refused(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that changes during preparation is rejected, even if its size and time are unchanged.

    Finished shards are kept.
    """
    copy = tmp_path / "text.txt"
    shutil.copyfile(text, copy)
    before, state = copy.read_bytes(), copy.stat()

    def change() -> None:
        copy.write_bytes(before.replace(b"e", b"a"))
        os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))

    message = r"text.txt: text.txt changed while it was being prepared; run the same command again"
    with stopped_at(4, monkeypatch, change), pytest.raises(DataError, match=message):
        prepare([copy], vocabulary, tmp_path / "data", settings=SHARDS)
    assert not (tmp_path / "data").exists()
    copy.write_bytes(before)
    assert contents(prepare([copy], vocabulary, tmp_path / "data", settings=SHARDS)) == contents(several)


def test_a_text_whose_rights_change_is_not_refused(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "text.txt"
    shutil.copyfile(text, copy)
    with stopped_at(4, monkeypatch, lambda: copy.chmod(0o600)):
        assert verify_corpus(prepare([copy], vocabulary, tmp_path / "data", settings=SHARDS)) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_the_work_and_the_command_goes_on(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.getsignal(number)
    count = len(read_manifest(several)["shards"])
    with stopped_at(4, monkeypatch, lambda: os.kill(os.getpid(), number)), pytest.raises(Interrupted) as caught:
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    assert str(caught.value) == f"stopped; 4 of {count} shards are finished and saved; run the same command to resume"
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert not (tmp_path / "data").exists()
    finished = times(tmp_path / "data.partial" / "shards" / "00003")
    folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    assert contents(folder) == contents(several)
    assert sorted(times(folder / "shards" / "00003").values()) == sorted(finished.values())


def test_other_work_in_the_same_place_is_refused_with_its_differences(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_at(4, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(Interrupted):
        prepare([text], vocabulary, tmp_path / "data", settings=PrepareSettings(0.2, seed=5, shard_size=0.005))
    message = (
        r"data.partial: holds unfinished work with other settings \(seed differ: seed is 5 there and 0 here\); "
        "run the command that started it, or start over with --fresh"
    )
    with pytest.raises(DataError, match=message):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    assert (tmp_path / "data.partial" / "shards" / "00003").exists()
    folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, fresh=True)
    assert contents(folder) == contents(several)


def test_damaged_and_half_written_shards_are_made_again(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_at(5, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(Interrupted):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    shards = tmp_path / "data.partial" / "shards"
    (shards / "00000" / "train-tokens.bin").write_bytes(b"cut")
    (shards / "00001" / "shard.json").write_text("{")
    (shards / "00002" / "shard.json").unlink()
    (shards / "00003" / "train-words.bin").unlink()
    (shards / "00007.123.tmp").mkdir()
    assert contents(prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)) == contents(several)


def test_killed_before_the_last_step(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise Interrupted(signal.SIGINT, "")

    for victim in ("plan.json", None):
        with monkeypatch.context() as patch:
            patch.setattr(module._Work, "_rename", stop)
            with pytest.raises(Interrupted):
                prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
        if victim is not None:
            (tmp_path / "data.partial" / victim).unlink()
        with stopped_at(0, monkeypatch, lambda: pytest.fail("made again")):
            folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
        assert contents(folder) == contents(several)
        folder.rename(tmp_path / f"done-{victim}")


def test_two_at_once_are_refused(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = []

    def start_another() -> None:
        with pytest.raises(
            DataError, match=r"data.partial: another process is using this folder; wait for it"
        ) as caught:
            prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
        refusals.append(caught)

    with stopped_at(4, monkeypatch, start_another):
        folder = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    assert len(refusals) == 1
    assert contents(folder) == contents(several)


def test_plain_text_that_is_not_utf8_stops_even_where_bad_rows_are_skipped(vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"One line.\n\nAnother \xff line.\n")
    settings = PrepareSettings(held_out=0, on_bad_row="skip")
    with pytest.raises(DataError, match=r"text\.txt:3: not valid UTF-8"):
        prepare([tmp_path / "text.txt"], vocabulary, tmp_path / "data", settings=settings)


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_shard_that_would_be_too_large_is_told(
    kind: str, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.corpus.preparation.shard_maker._MOST_TOKENS", 3)
    path = tmp_path / ("one.txt" if kind == "text" else "one.parquet")
    if kind == "text":
        path.write_text("The old river sees the garden.\n", encoding="utf-8")
    else:
        parquet.write_table(pyarrow.table({"text": ["The old river sees the garden."]}), path)
    message = r"^shard 00000: more than 4 billion tokens, .*; put blank lines between documents, or write smaller row g"
    with pytest.raises(DataError, match=message):
        prepare([path], vocabulary, tmp_path / "data", settings=PrepareSettings(held_out=0))
    assert not (tmp_path / "data").exists()


# Disk errors


def test_full_disk_is_one_line_and_keeps_what_is_finished(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = SplitWriter.add

    def fail(writer: SplitWriter, *arguments: Any) -> None:
        if "00004" in str(writer._paths["tokens"]):
            raise OSError(28, "No space left on device")
        add(writer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SplitWriter, "add", fail)
        message = r"00004: cannot be written \(No space left on device\); the finished shards are saved: free some"
        with pytest.raises(ClozeError, match=message):
            prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)
    assert len(list((tmp_path / "data.partial" / "shards").iterdir())) == 4  # no partial file remains
    assert contents(prepare([text], vocabulary, tmp_path / "data", settings=SHARDS)) == contents(several)


LIMITED = """
import resource, sys
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
prepare([sys.argv[1]], sys.argv[2], sys.argv[3], settings=PrepareSettings(0.2, shard_size=float(sys.argv[5])))
"""


@pytest.mark.parametrize(("limit", "size"), [(4000, 1.0), (9000, 0.005), (20_000, 0.0002)])
def test_every_write_may_fail(text: Path, vocabulary: Path, tmp_path: Path, limit: int, size: float) -> None:
    """Write errors at the ids, the vocabulary or the manifest are reported; a file-size limit simulates them."""
    words = [str(text), str(vocabulary), str(tmp_path / "data"), str(limit), str(size)]
    done = subprocess.run([sys.executable, "-c", LIMITED, *words], capture_output=True, text=True)
    assert "ClozeError" in done.stderr.splitlines()[-1]
    assert "cannot be written (File too large); the finished shards are saved" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "data").exists()
    settings = PrepareSettings(0.2, shard_size=size)
    folder = prepare([text], vocabulary, tmp_path / "data", settings=settings)
    assert verify_corpus(folder) > 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_place_that_cannot_be_written_is_one_line(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClozeError, match=r"data: cannot be written \((Not a directory|File exists)\)"):
        prepare([text], vocabulary, tmp_path / "file" / "data")


# Existing output


def test_second_time_touches_nothing(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    before = times(tmp_path)
    with stopped_at(0, monkeypatch, lambda: pytest.fail("made again")):
        assert prepare([text], vocabulary, folder) == folder
    assert times(tmp_path) == before


def test_fresh_replaces_what_is_there(text: Path, vocabulary: Path, several: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    assert contents(prepare([text], vocabulary, folder, settings=SHARDS, fresh=True)) == contents(several)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_folders_of_others_beside_it_are_left_alone(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    for name in ("data.old", "data.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match=r"data.partial: holds 'mine.txt', which cloze did not write.*; choose another"):
        prepare([text], vocabulary, tmp_path / "data")
    assert (tmp_path / "data.partial" / "mine.txt").read_text(encoding="utf-8") == "mine"
    (tmp_path / "data.partial").rename(tmp_path / "elsewhere")
    prepare([text], vocabulary, tmp_path / "data")
    prepare([text], vocabulary, tmp_path / "data", settings=PrepareSettings(seed=1), fresh=True)
    assert (tmp_path / "data.old" / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.old", "elsewhere"]


def test_vocabulary_of_a_run_or_the_shipped_model_is_found(vocabulary: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(vocabulary)
    folder = prepare([text], tmp_path / "run", tmp_path / "data")
    assert Tokenizer.from_folder(folder).pieces == Tokenizer.from_folder(vocabulary).pieces
    shipped = prepare([text], "cloze-mini", tmp_path / "shipped")
    assert Tokenizer.from_folder(shipped).size == 16_000


def test_text_that_is_all_held_out_is_told(vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("The old river.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"one.txt: all documents \(1\) were held out.*smaller --held-out"):
        prepare([tmp_path / "one.txt"], vocabulary, tmp_path / "data", settings=PrepareSettings(0.9999999))
    assert [path.name for path in tmp_path.iterdir()] == ["one.txt"]


def test_changes_are_refused_by_name(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    message = (
        r"prepared with other settings \(held_out, seed differ: held_out is 0.01 there and 0.5 here, seed is 0 there "
        r"and 3 here\); choose another --out"
    )
    with pytest.raises(DataError, match=message):
        prepare([text], vocabulary, folder, settings=PrepareSettings(0.5, seed=3))
    more = tmp_path / "more" / text.name
    more.parent.mkdir()
    more.write_text("One more.\n", encoding="utf-8")
    # Two files with the same name, or a different order of files, give a different corpus.
    both = prepare([text, more], vocabulary, tmp_path / "both")
    for texts in ([more], [more, text], [text]):
        with pytest.raises(DataError, match=r"\(texts differ\)"):
            prepare(texts, vocabulary, both)


def test_changed_casing_is_another_vocabulary(
    text: Path, vocabulary: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    for number, rules in enumerate(({"lowercase": False}, {"lowercase": True, "strip_accents": False})):
        other = tmp_path / f"vocabulary{number}"
        Tokenizer.from_vocabulary(tokenizer.pieces, **rules).save(other)
        with pytest.raises(DataError, match=r"\(vocabulary differ\)"):
            prepare([text], other, folder)


def test_empty_corpus_leaves_nothing(vocabulary: Path, tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    for text in ("\n\n", "", "\u200b\n"):
        blank.write_text(text, encoding="utf-8")
        with pytest.raises(
            DataError, match=r"blank\.txt: contains no text; expected a sentence or a paragraph per line"
        ):
            prepare([blank], vocabulary, tmp_path / "data")
        assert [path.name for path in tmp_path.iterdir()] == ["blank.txt"]


def test_foreign_folder_is_left_alone(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work", encoding="utf-8")
    for fresh in (False, True):
        with pytest.raises(DataError, match="thesis: exists and is not a prepared corpus; choose another --out"):
            prepare([text], vocabulary, folder, fresh=fresh)
    assert (folder / "chapter.txt").read_text(encoding="utf-8") == "years of work"
    (folder / "chapter.txt").unlink()
    assert read_manifest(prepare([text], vocabulary, folder))["splits"]["train"]["documents"] > 0


# Duplicates


def test_duplicates_are_dropped_and_counted(vocabulary: Path, tmp_path: Path) -> None:
    originals = make_documents(60, seed=3, sentences=(20, 30))
    nearly = [[*document[:-1], "Again the captain leaves."] for document in originals[:20]]
    shouted = [[sentence.upper() for sentence in document] for document in originals[20:50]]
    (tmp_path / "text.txt").write_text(as_text([*originals, *nearly, *shouted, *originals[:5]]), encoding="utf-8")
    expected = {"keep": 0, "exact": 35, "near": 55}
    for kind, count in expected.items():
        settings = PrepareSettings(0.3, duplicates=kind, shard_size=0.02)  # type: ignore[arg-type]
        folder = prepare([tmp_path / "text.txt"], vocabulary, tmp_path / kind, settings=settings)
        manifest = read_manifest(folder)
        assert manifest["duplicates"] == count
        assert sum(facts["documents"] for facts in manifest["splits"].values()) == 115 - count
        assert len(manifest["shards"]) > 3
        assert sorted(path.name for path in folder.iterdir())[:2] == ["manifest.json", "shards"]
    train, held_out = (documents_of(Corpus.open(tmp_path / "exact", split)) for split in ("train", "held_out"))
    assert held_out
    assert not [document for document in held_out if document in train]


def test_work_with_duplicates_goes_on(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PrepareSettings(0.2, shard_size=0.005, duplicates="exact")
    whole = prepare([text], vocabulary, tmp_path / "whole", settings=settings)
    with stopped_at(4, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(Interrupted):
        prepare([text], vocabulary, tmp_path / "data", settings=settings)
    assert contents(prepare([text], vocabulary, tmp_path / "data", settings=settings)) == contents(whole)


# Settings


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_share_out_of_bounds_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=f"held_out is {share}; expected a fraction of at least 0 and below 1"):
        PrepareSettings(share)


@pytest.mark.parametrize("size", [0, -1, 2000])
def test_shard_size_out_of_bounds_is_refused(size: float) -> None:
    with pytest.raises(ConfigError, match=f"shard_size is {size}; expected more than 0 and at most 1024 megabytes"):
        PrepareSettings(shard_size=size)


def test_nan_is_refused() -> None:
    with pytest.raises(ConfigError, match="held_out is nan; expected a number"):
        PrepareSettings(held_out=float("nan"))


def test_ids_of_a_large_vocabulary_need_more_bits() -> None:
    assert id_type(Tokenizer.from_vocabulary(_pieces(2**16), lowercase=True)) == "<u2"
    assert id_type(Tokenizer.from_vocabulary(_pieces(2**16 + 1), lowercase=True)) == "<i4"
    assert np.asarray([2**16 - 1], "<u2").tolist() == [2**16 - 1]


def _pieces(count: int) -> list[str]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + [f"word{number}" for number in range(count - len(special))]


def test_lines_that_are_sentences_stay_whole(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "text.txt").write_text("One door. Two doors.\nThree.\n\nFour. Five.\n", encoding="utf-8")
    counts = []
    for lines in ("paragraphs", "sentences"):
        settings = PrepareSettings(held_out=0, lines=lines)
        folder = prepare([tmp_path / "text.txt"], vocabulary, tmp_path / lines, settings=settings)
        counts.append(read_manifest(folder)["splits"]["train"])
    assert [count["sentences"] for count in counts] == [5, 3]
    assert counts[0]["tokens"] == counts[1]["tokens"]


def test_a_stopped_command_with_fresh_goes_on(
    text: Path, vocabulary: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    with stopped_at(4, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(Interrupted):
        prepare([text], vocabulary, folder, settings=SHARDS, fresh=True)
    finished = times(tmp_path / "data.partial" / "shards" / "00003")
    prepare([text], vocabulary, folder, settings=SHARDS, fresh=True)
    assert contents(folder) == contents(several)
    assert sorted(times(folder / "shards" / "00003").values()) == sorted(finished.values())


def test_what_was_found_out_before_the_first_shard_is_kept(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PrepareSettings(0.2, shard_size=0.005, duplicates="exact")
    with stopped_at(0, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM)), pytest.raises(Interrupted):
        prepare([text], vocabulary, tmp_path / "data", settings=settings)
    kept = times(tmp_path / "data.partial" / "hashes")
    assert len(kept) > 3
    with stopped_at(0, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM)), pytest.raises(Interrupted):
        prepare([text], vocabulary, tmp_path / "data", settings=settings)
    assert times(tmp_path / "data.partial" / "hashes") == kept


def test_a_changed_vocabulary_is_found(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    folder = prepare([text], vocabulary, tmp_path / "data")
    assert verify_corpus(folder) > 0
    tokenizer = Tokenizer.from_folder(folder)
    pieces = [*tokenizer.pieces[:-2], tokenizer.pieces[-1], tokenizer.pieces[-2]]
    Tokenizer(replace(tokenizer.settings, pieces=tuple(pieces))).save(folder)
    with pytest.raises(DataError, match="data: its vocabulary differs from the one that the text was prepared with"):
        verify_corpus(folder)


def test_a_place_needs_a_name(text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for place in (".", ".."):
        with pytest.raises(ConfigError, match=r"^\.+: expected a path with a folder name, such as \.*/?new$"):
            prepare([text], vocabulary, place)


def test_many_files_have_a_long_list(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.files.JSON_LIMIT", 10)
    assert read_manifest(prepare([text], vocabulary, tmp_path / "data"))["shards"]
