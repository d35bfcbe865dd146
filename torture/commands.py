"""Every command that writes files, with inputs that are processed in seconds; used by T25 to T28."""

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

from cloze.cli import inputs, jobs
from cloze.locks import is_ours
from cloze.predict.search import building
from torture.training import command, make_corpus, run_command

Words = list[str]
# Files that differ between runs, since they contain times, speeds or plots.
_NEVER_EQUAL = {"metrics.jsonl", "run.json", "curves.png", "eval_results.json", "distillation.json", "README.md"}
_ROWS = 24


@dataclass(frozen=True)
class SmallParts:
    """Hook: set a small part size, so that a short file has several parts, and set the umask."""

    umask: int | None = None

    def __call__(self, pipe: Connection) -> None:
        """Set the part size and the umask of this process."""
        patch.object(jobs, "SLOW_PART_ROWS", _ROWS // 3).start()
        patch.object(inputs, "PART_ROWS", _ROWS // 3).start()
        patch.object(building, "PART_DOCUMENTS", _ROWS // 3).start()
        if self.umask is not None:
            os.umask(self.umask)
        pipe.send("ready")


class Inputs:
    """A corpus, a model, a classifier and tables as inputs."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.data = make_corpus(scratch / "corpus")
        self.text, self.vocabulary = scratch / "corpus" / "text.txt", scratch / "corpus" / "vocabulary"
        self.model, self.rows = scratch / "base", scratch / "rows.csv"
        texts = [line for line in self.text.read_text(encoding="utf-8").splitlines() if line][:_ROWS]
        lines = [f"{text.replace(',', ' ')},{('even', 'odd')[number % 2]}" for number, text in enumerate(texts)]
        self.rows.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
        self.must(command(self.data, scratch / "first", 1))
        shutil.move(scratch / "first" / "model", self.model)

    @cached_property
    def tuned(self) -> Path:
        """Return a fine-tuned classifier, training it on first use."""
        self.must(self.finetune(self.scratch / "tuned", "1"))
        return self.scratch / "tuned"

    def finetune(self, out: Path, seed: str) -> Words:
        """Return the command that fine-tunes the smallest classifier."""
        words = ["finetune", "classify", str(self.rows), "--dev", str(self.rows), "--model", str(self.model)]
        return [*words, "--out", str(out), "--epochs", "1", "--batch", "8", "--length", "24", "--seed", seed]

    def must(self, words: Words) -> None:
        """Run a command and raise an error if it fails."""
        code, child = run_command(words, self.scratch / "said", SmallParts())
        if code != 0:
            raise RuntimeError(f"{' '.join(words)}: exit code {code}: {child.last_line}")

    def commands(self) -> Mapping[str, tuple[str, Callable[[Path, int], Words]]]:
        """Return every command that writes files: its output suffix, and a function (output, variant) -> arguments.

        Variants 0 and 1 write different outputs.
        """
        model, rows, text = str(self.model), str(self.rows), str(self.text)
        return {
            "vocab": ("", lambda out, v: ["vocab", text, "--out", str(out), "--size", str(150 + 20 * v)]),
            "prepare": (
                "",
                lambda out, v: [
                    *("prepare", text, "--vocab", str(self.vocabulary), "--out", str(out)),
                    *("--seed", str(v), "--held-out", "0.2", "--shard-size", "0.01", "--workers", "1"),
                ],
            ),
            "convert": ("", lambda out, v: ["convert", model, str(out), *(["--half"] if v else [])]),
            "extend": (
                "",
                lambda out, v: ["extend", "--model", model, "--out", str(out), "--positions", str(520 + v)],
            ),
            "quantize": ("", lambda out, _: ["quantize", "--model", model, "--out", str(out), "--input", rows]),
            "pretrain": ("", lambda out, v: command(self.data, out, 2, "--seed", str(v))),
            "finetune": ("", lambda out, v: self.finetune(out, str(v))),
            "distill": (
                "",
                lambda out, v: [
                    *("distill", "classify", rows, "--dev", rows, "--model", str(self.tuned), "--out", str(out)),
                    *("--layers", "1", "--epochs", "1", "--batch", "8", "--seed", str(v)),
                ],
            ),
            "evaluate": (
                "",
                lambda out, _: ["evaluate", "classify", rows, "--model", str(self.tuned), "--out", str(out)],
            ),
            "score": (
                ".jsonl",
                lambda out, v: [
                    *("score", "--model", model, "--input", rows, "--output", str(out)),
                    *(["--text", "label"] if v else []),
                ],
            ),
            "classify": (
                ".csv",
                lambda out, _: ["classify", "--model", str(self.tuned), "--input", rows, "--output", str(out)],
            ),
            "embed": (
                ".jsonl",
                lambda out, v: [
                    *("embed", "--model", model, "--input", rows, "--output", str(out)),
                    *("--pooling", "cls" if v else "mean"),
                ],
            ),
            "index": (
                "",
                lambda out, v: [
                    *("index", rows, "--out", str(out), "--model", model, "--precision", "fp32"),
                    *("--chunk", str(64 + v), "--threads", "1"),
                ],
            ),
            "inspect": (
                ".html",
                lambda out, v: ["inspect", ("one text", "another")[v], "--model", model, "--out", str(out)],
            ),
        }


def contents(place: Path) -> dict[str, str]:
    """Return the files below a path with their digests, or "" for files that differ between runs."""
    if place.is_file():
        return {"": sha256(place.read_bytes()).hexdigest()}
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {
        path.relative_to(place).as_posix(): "" if path.name in _NEVER_EQUAL else sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def state_of(place: Path) -> list[tuple[str, int, int, str]]:
    """Return the full state of a path and everything below: type, mode, owner, and content or link target."""
    found = []
    for path in [place, *(sorted(place.rglob("*")) if place.is_dir() and not place.is_symlink() else [])]:
        state = os.lstat(path)
        if stat.S_ISLNK(state.st_mode):
            content = str(path.readlink())
        else:
            content = sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(state.st_mode) else str(state.st_rdev)
        found.append((path.relative_to(place).as_posix(), state.st_mode, state.st_uid, content))
    return found


def litter(folder: Path) -> list[str]:
    """Return temporary files left in a folder, except the lock files of killed processes."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if is_ours(path) and not path.name.endswith(".cloze-lock")
    )
