"""``cloze prepare`` on the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloze.corpus.shards import read_manifest
from tests.cli.conftest import Cloze, Way

CLOZE = [sys.executable, "-c", "from cloze.cli import main; main()"]


def test_summary_counts_everything(run: Cloze, way: Way, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = ['{"body": "He shook his head. ☃"}', '{"body": "HE SHOOK his head. ☃"}', "no", '{"body": "She sat down."}']
    path.write_text("\n".join(rows), encoding="utf-8")
    words = ["prepare", path, "--vocab", way.vocabulary, "--out", tmp_path / "data", "--held-out", 0]
    words += ["--text", "body", "--on-bad-row", "skip", "--duplicates", "exact"]
    output = json.loads(run(*words, "--json").out)
    assert (output["folder"], output["shards"], output["duplicates"], output["bad_rows"]) == (
        str(tmp_path / "data"),
        1,
        1,
        1,
    )
    train = output["train"]
    assert (train["documents"], train["sentences"], train["unknown"]) == (2, 3, 1)
    assert train["unknown_share"] == 1 / train["tokens"]
    assert train["words"] <= train["tokens"]
    table = run(*words).out.splitlines()
    assert table[1].split("\t")[0] == "train"
    assert table[3:] == ["1 duplicate documents were dropped", "1 bad rows were skipped"]


def test_folder_is_verified(run: Cloze, way: Way, tmp_path: Path) -> None:
    data = shutil.copytree(way.data, tmp_path / "data")
    size = sum(path.stat().st_size for path in data.rglob("*.bin"))
    assert run("prepare", "--verify", data).out == f"{data}: {size:,} bytes verified, unchanged\n"
    assert json.loads(run("prepare", "--verify", data, "--json").out) == {"folder": str(data), "bytes": size}
    path = data / "shards" / "00000" / "train-tokens.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    result = run("prepare", "--verify", data)
    assert (result.code, "train-tokens.bin: shard 00000 was damaged" in result.complaint) == (2, True)


@pytest.mark.parametrize("missing", ["TEXTS", "--vocab", "--out"])
def test_missing_word_is_named(run: Cloze, way: Way, tmp_path: Path, missing: str) -> None:
    given: dict[str, list[object]] = {
        "TEXTS": [way.text],
        "--vocab": ["--vocab", way.vocabulary],
        "--out": ["--out", tmp_path / "data"],
    }
    result = run("prepare", *(word for name, words in given.items() if name != missing for word in words))
    assert (result.code, result.complaint) == (2, f"{missing} is missing; 'cloze prepare --help' explains it")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_preparation_goes_on_by_the_same_command(
    run: Cloze, way: Way, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """A stopped preparation is resumed by the same command; its worker processes end with it."""
    big = tmp_path / "big.txt"
    big.write_bytes(way.text.read_bytes() * 30)
    words = ["prepare", big, "--vocab", way.vocabulary, "--shard-size", 0.3, "--workers", 2]
    command = [*CLOZE, *map(str, words), "--out", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shards = tmp_path / "data.partial" / "shards"
    while process.poll() is None and not list(shards.glob("*/shard.json")):
        time.sleep(0.02)
    children = [int(line) for line in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert process.returncode == code
    assert output.splitlines()[-1].endswith("shards are finished and saved; run the same command to resume")
    assert output.splitlines()[-1].startswith("cloze: note: stopped; ")
    assert len(children) == 2
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert subprocess.run(command, env=dict(os.environ), capture_output=True).returncode == 0
    assert run(*words[:-2], "--workers", 1, "--out", tmp_path / "other").code == 0
    assert read_manifest(tmp_path / "data") == read_manifest(tmp_path / "other")
    assert not (tmp_path / "data.partial").exists()


def test_vocabulary_that_does_not_fit_is_reported_before_the_work(run: Cloze, way: Way, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("今天天气很好。\n" * 20, encoding="utf-8")
    result = run("prepare", text, "--vocab", way.vocabulary, "--out", tmp_path / "data")
    assert "in the first 20 paragraphs, " in result.err
    assert "lacks most Chinese characters" in result.err
    assert "[UNK]" not in run("prepare", way.text, "--vocab", way.vocabulary, "--out", tmp_path / "fitting").err


def test_evaluation_warns_of_unknown_words(run: Cloze, way: Way, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = way.rows.read_text(encoding="utf-8").splitlines()
    rows.write_text("\n".join([lines[0], *("今天天气很好" + line for line in lines[1:9])]) + "\n", encoding="utf-8")
    (tmp_path / "odd.txt").write_text("漢字 the door 仮名。\n" * 40, encoding="utf-8")
    output = run("evaluate", "mlm", tmp_path / "odd.txt", "--model", way.pretrained, "--max-length", 16).err
    assert "paragraphs, " in output
    assert "of the tokens are [UNK]" in output
    assert "add words with cloze extend" in output
    assert "[UNK]" not in run("evaluate", "mlm", way.text, "--model", way.pretrained, "--max-length", 16).err
    assert "of the tokens are [UNK]" in run("evaluate", "classify", rows, "--model", way.tuned).err
    assert "[UNK]" not in run("evaluate", "classify", way.rows, "--model", way.tuned).err
