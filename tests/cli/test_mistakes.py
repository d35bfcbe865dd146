"""User errors: exit code 2, one helpful line, no traceback, nothing left behind."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Cloze, Way

Words = list[object]
Mistake = Callable[[Way, Path], tuple[Words, str]]


def copy_model(way: Way, folder: Path) -> Path:
    return shutil.copytree(way.pretrained / "model", folder / "model")


def truncated_weights(way: Way, folder: Path) -> tuple[Words, str]:
    weights = copy_model(way, folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return ["fill", "[MASK]", "--model", folder / "model"], "model.safetensors: "


def tensor_of_another_shape(way: Way, folder: Path) -> tuple[Words, str]:
    weights = copy_model(way, folder) / "model.safetensors"
    tensors = load_file(weights)
    name = "bert.encoder.layer.1.attention.self.query.weight"
    save_file({**tensors, name: torch.zeros(128, 64)}, weights)
    return ["fill", "[MASK]", "--model", folder / "model"], "query.weight"


def foreign_vocabulary(way: Way, folder: Path) -> tuple[Words, str]:
    model = copy_model(way, folder)
    (model / "tokenizer.json").unlink()
    with (model / "vocab.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"surplus{number}\n" for number in range(40))
    return ["fill", "[MASK]", "--model", model], "540 pieces"


class Payload:
    """An object that writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def hostile_pickle(way: Way, folder: Path) -> tuple[Words, str]:
    model = copy_model(way, folder)
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(folder / "run")}))
    return ["fill", "[MASK]", "--model", model], "pytorch_model.bin: "


def empty_corpus(way: Way, folder: Path) -> tuple[Words, str]:
    (folder / "blank.txt").write_text("\n\n", encoding="utf-8")
    words = ["prepare", folder / "blank.txt", "--vocab", way.vocabulary, "--out", folder / "run"]
    return words, "blank.txt: contains no text; expected a sentence or a paragraph per line"


def unfinished_run(way: Way, folder: Path) -> tuple[Words, str]:
    (folder / "halfway" / "checkpoints").mkdir(parents=True)
    return ["fill", "[MASK]", "--model", folder / "halfway"], "this run has not finished; run its command again"


def folder_of_others(way: Way, folder: Path) -> tuple[Words, str]:
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("years", encoding="utf-8")
    return ["vocab", way.text, "--out", folder / "thesis", "--size", 300], "is not a vocabulary folder"


def negatives_over_the_pairs(way: Way, folder: Path) -> tuple[Words, str]:
    (folder / "pairs.jsonl").write_text('{"query": "who", "positive": "he"}\n', encoding="utf-8")
    words = ["mine", folder / "pairs.jsonl", "--model", "missing", "--out", folder / "pairs.jsonl"]
    return words, "pairs.jsonl: this is an input itself; choose another location"


def documents_without_a_query(way: Way, folder: Path) -> tuple[Words, str]:
    words = ["rerank", "", "a document", "--input", folder / "pairs.jsonl", "--pair", "body"]
    return words, "documents were given without a query"


MADE: dict[str, Mistake] = {
    "unfinished run": unfinished_run,
    "truncated weights": truncated_weights,
    "tensor of another shape": tensor_of_another_shape,
    "foreign vocabulary": foreign_vocabulary,
    "hostile pickle": hostile_pickle,
    "empty corpus": empty_corpus,
    "folder of others": folder_of_others,
    "negatives over the pairs": negatives_over_the_pairs,
    "documents without a query": documents_without_a_query,
}
# Commands with the names of pipeline folders, and the expected error messages.
TYPED = {
    "vocab {folder}/none.txt --out {folder}/run": "none.txt: no such file",
    "vocab {text}": "--out",
    "vocab {rows} --out {folder}/run": "rows.tsv: is a table; expected",
    "prepare {rows} --vocab {pretrained} --out {folder}/run": "rows.tsv: is a table; expected",
    "pretrain {data} --preset tiny --length 1000000 --out {folder}/run": "length is 1000000; expected at most 32,768",
    "evaluate classify {rows} --model {tuned} --length 64": "--max-length is 64, which only applies to mlm",
    "evaluate mlm {text} --label-errors": "--label-errors only applies to classify; leave it out for mlm",
    "evaluate classify {rows} --model {tuned} --label-errors --abstain-at 0.1": (
        "--abstain-at 0.1 has no effect with --label-errors; leave out one of the two"
    ),
    "evaluate classify {rows} --model {tuned} --label-errors --report {folder}/page.html": (
        "page.html has no effect with --label-errors; leave out one of the two"
    ),
    "evaluate mlm {text} --abstain-at 0.1": "which only applies to classify; leave it out for mlm",
    "evaluate clustering {rows} --abstain-at 0.1": "which only applies to classify; leave it out for clustering",
    "evaluate clustering {rows} --longest-answer 3": "applies only to question answering; leave it out for clustering",
    "suggest {rows} --model {tuned} --output {rows}": "this is the file of rows itself; choose another location",
    "evaluate mlm {text} --split test": "--split is 'test', which only applies to published tasks; leave it out",
    "finetune classify {rows} --model {pretrained} --length 2 --out {folder}/run": "length is 2; expected at least 3",
    "pretrian {data}": "unknown command 'pretrian'; did you mean 'pretrain'?",
    "distill --out {folder}/run": "is missing; 'cloze distill --help' explains it",
    "pretrain {folder} --out {folder}/run --mask-mix 0.8 0.2": "--mask-mix is 0.8 0.2; expected 3 values",
    "pretrain {folder}/none --out {folder}/run": "none: not a prepared corpus (no manifest.json); create one with",
    "pretrain {data} --preset tinny --out {folder}/run": "unknown preset 'tinny'; did you mean 'tiny'?",
    "pretrain {data} --step 3 --out {folder}/run": "Unknown option: --step. Did you mean --steps?",
    "pretrain {data} --steps many --out {folder}/run": 'Invalid value for --steps: unable to convert "many" into int.',
    "pretrain {data} --seed -1 --out {folder}/run": "seed is -1; expected a whole number of at least 0",
    "pretrain {data} --preset tiny --device warp --out {folder}/run": "device 'warp' is not available on this machine",
    "finetune classify {folder}/none.csv --model {pretrained} --out {folder}/run": "none.csv does not exist",
    "finetune clasify {rows} --model {pretrained} --out {folder}/run": "'clasify'; did you mean 'classify'?",
    "finetune classify {rows} --text txt --model {pretrained} --out {folder}/run": (
        "has no column 'txt'; it has: text, label, book; did you mean 'text'?"
    ),
    "finetune glue {rows} --temperature 0.1 --out {folder}/run": "temperature is 0.1, which only applies to similarity",
    "evaluate glue {folder} --model {tuned}": "glue is a suite of several tasks; name one of them: cola, sst-2, ",
    "evaluate mrpc {folder} --model {tuned} --split test": "test rows are not published; give --out for the answers",
    "evaluate classify {rows} --model {tuned} --out {rows}": "rows.tsv is a file; choose another folder",
    "classify door --model {tuned} --output a.txt": "--output a.txt: expected .jsonl, .csv or .tsv",
    "answer who door --model {tuned} --output a.txt": "--output a.txt: expected .jsonl, .csv or .tsv",
    "choose door a b --model {tuned} --output a.txt": "--output a.txt: expected .jsonl, .csv or .tsv",
    "tag door --model {tuned} --output a.txt": "--output a.txt: expected .jsonl, .csv, .tsv or .conll",
    "evaluate regress {rows} --model {tuned}": "needs a model fine-tuned to regress; this one is fine-tuned",
    "fill [MASK] --model {folder}/none": "none: no such folder",
    "fill [MASK] --model {pretrained} --threads 0": "threads is 0; expected at least 1",
    "fill door --model {pretrained}": "no [MASK] in 'door'",
    "fill [MASK] --rounds 3 --model {pretrained}": "--rounds only applies to --joint; "
    "without it, each blank is predicted once",
    "embed --input {folder}/none.txt --model {pretrained}": "none.txt: no such file",
    "embed door --text body": "--text body names a column of --input; leave it out, or give --input FILE",
    "rerank who door --text body": "--text body names a column of --input; leave it out, or give --input FILE",
    "embed door --input {text} --model {pretrained}": "texts were given both as arguments and by --input",
    "embed door --model {pretrained} --pooling meen": "unknown pooling 'meen'; did you mean 'mean'?",
    "classify door --model {pretrained}": "this model has no 'sequence' head (its heads: mlm, nsp)",
    "classify one two --pair three --model {tuned}": "--pair with 2 texts; give one text",
}


def check(run: Cloze, words: Words, message: str, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    result = run(*words)
    assert result.code == 2
    assert result.out == ""
    assert message in result.complaint
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", MADE)
def test_bad_file_is_one_line(run: Cloze, way: Way, tmp_path: Path, name: str) -> None:
    check(run, *MADE[name](way, tmp_path), tmp_path)


@pytest.mark.parametrize("command", TYPED)
def test_bad_command_is_one_line(run: Cloze, way: Way, tmp_path: Path, command: str) -> None:
    words: Words = [word.format(folder=tmp_path, **vars(way)) for word in command.split()]
    check(run, words, TYPED[command], tmp_path)


def test_debug_shows_where(run: Cloze, tmp_path: Path) -> None:
    result = run("vocab", tmp_path / "none.txt", "--out", tmp_path / "out", "--debug")
    assert result.code == 2
    assert result.err.startswith("Traceback")
    assert result.err.splitlines()[-1] == f"cloze: error: {tmp_path / 'none.txt'}: no such file"


def test_changed_settings_are_told_as_a_difference(run: Cloze, way: Way) -> None:
    recorded = json.loads((way.pretrained / "run.json").read_text(encoding="utf-8"))
    words = ["pretrain", way.data, "--preset", "tiny", "--steps", 21, "--batch", 4, "--length", 32]
    result = run(*words, "--out", way.pretrained)
    assert (result.code, "steps was 20 and is now 21; choose another out (--out)" in result.complaint) == (2, True)
    assert json.loads((way.pretrained / "run.json").read_text(encoding="utf-8")) == recorded


@pytest.mark.parametrize("command", ["classify", "embed", "tag", "score", "correct", "generate", "explain", "rerank"])
def test_file_given_as_a_text_is_refused(
    command: str, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text\na\n", "utf-8")
    query = ["a query"] if command == "rerank" else []
    result = run(command, *query, "rows.csv", "--model", "missing")
    assert (result.code, result.complaint) == (2, "rows.csv is a file, but was given as a text; use --input rows.csv")
    assert run(command, *query, "other.csv", "--model", "missing").complaint.startswith("missing: no such folder")
