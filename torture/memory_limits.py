"""T29: commands under memory limits (``ulimit -v``), with tasks that fit into memory and tasks that do not.

Each must end with a result, or with exit code 2 and one line about memory, without a traceback, a signal, or an
intervention by the system's out-of-memory killer.
"""

import contextlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from tests.model.made import model_folder, saved
from transformers import BertConfig, BertModel

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.training import make_corpus
from torture.vocabulary import CLOZE

_LONGEST = 600.0  # timeout of one command in seconds
_MOST_FAILURES = 10
# One thread: thread stacks count as virtual memory, and their number depends on the machine's cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


@dataclass(frozen=True)
class LimitSettings:
    """Memory limits in gigabytes, and the commands to run under each."""

    gigabytes: tuple[float, ...] = (1, 2, 4)
    commands: tuple[str, ...] = (
        *("plan small", "plan large", "pretrain small", "pretrain large", "finetune small", "finetune large"),
        *("embed small", "embed large", "serve small", "serve large"),
    )


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    err: str

    @property
    def problem(self) -> str | None:
        """Return a description of the failure, or None if the command gave a result or a clear error message."""
        last = (self.err.strip().splitlines() or ["nothing"])[-1]
        if "Traceback" in self.err or self.code not in (0, 2):
            return f"exit code {self.code}: {last[:200]}"
        speaks = last.startswith("cloze: error: ") and ("memory" in last or "ulimit -v" in last)
        return None if self.code == 0 or speaks else f"the error message does not mention memory: {last[:200]}"


def run(settings: LimitSettings, progress: Progress) -> Outcome:
    """Run every command under every limit."""
    failures: list[str] = []
    results = refusals = 0
    with TemporaryDirectory() as scratch:
        words = prepare_commands(Path(scratch))
        for gigabytes in settings.gigabytes:
            for number, name in enumerate(settings.commands):
                out = Path(scratch) / f"out-{gigabytes}-{number}"
                ended = (try_serving if name.startswith("serve") else try_command)(words[name], gigabytes, out)
                results, refusals = results + (ended.code == 0), refusals + (ended.code == 2)
                failures += [] if ended.problem is None else [f"{name}, {gigabytes} GB: {ended.problem}"]
                progress.say(f"T29: {name} under {gigabytes} GB: exit code {ended.code}")
    figures: dict[str, str | int | float] = {"results": results, "refusals": refusals}
    return Outcome(not failures and results + refusals > 0, figures, failures[:_MOST_FAILURES])


def prepare_commands(folder: Path) -> dict[str, list[str]]:
    """Create data and models, and return the arguments of each command; ``OUT`` stands for its output."""
    corpus = str(make_corpus(folder / "corpus"))
    model = str(saved(model_folder(["mlm", "nsp"]), folder / "model"))
    (folder / "rows.csv").write_text("text,label\n" + "the cat sat,a\nthe dog ran,b\n" * 40, encoding="utf-8")
    (folder / "long.csv").write_text("text,label\n" + f"{'the cat sat ' * 12},a\nthe dog,b\n" * 3000, encoding="utf-8")
    small, large = ["--preset", "tiny", "--batch", "4", "--length", "24"], ["--preset", "large", "--batch", "64"]
    rows, long = str(folder / "rows.csv"), str(folder / "long.csv")
    tuning = ["--model", model, "--out", "OUT", "--epochs", "1", "--length", "32"]
    huge = str(folder / "huge")
    return {
        "plan small": ["plan", corpus, *small, "--steps", "2"],
        "plan large": ["plan", corpus, *large, "--steps", "2"],
        "pretrain small": ["pretrain", corpus, *small, "--steps", "2", "--out", "OUT"],
        "pretrain large": ["pretrain", corpus, *large, "--steps", "2", "--out", "OUT"],
        "finetune small": ["finetune", "classify", rows, *tuning],
        "finetune large": ["finetune", "classify", long, *tuning, "--batch", "6000"],
        "embed small": ["embed", "--model", model, "--input", rows, "--output", "OUT.npy"],
        "embed large": ["embed", "--model", make_huge(Path(huge), Path(model)), "the cat sat"],
        "serve small": ["serve", model],
        "serve large": ["serve", huge],
    }


def make_huge(folder: Path, model: Path) -> str:
    """Create a folder with a model of 3 GB, whose weights are zeros in a sparse file, and return its name."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    known = json.loads((model / "config.json").read_text(encoding="utf-8"))
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "num_hidden_layers": 59,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    config = BertConfig(**{name: known[name] for name in ("vocab_size", "max_position_embeddings")}, **sizes)
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in BertModel(config).state_dict().items()}
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    return str(folder)


def limited(words: Sequence[str], gigabytes: float, out: Path) -> list[str]:
    """Return a command line with a limit on virtual memory."""
    named = [word.replace("OUT", str(out)) if word.startswith("OUT") else word for word in words]
    return ["sh", "-c", f'ulimit -v {round(gigabytes * 2**20)}; exec "$0" "$@"', *CLOZE, *named]


def try_command(words: Sequence[str], gigabytes: float, out: Path) -> Ended:
    """Run a command and wait for it to end."""
    environment = os.environ | _ENVIRONMENT
    try:
        done = subprocess.run(
            limited(words, gigabytes, out), capture_output=True, text=True, env=environment, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        return Ended(-1, f"not done after {_LONGEST:.0f} s")
    return Ended(done.returncode, done.stderr)


def try_serving(words: Sequence[str], gigabytes: float, out: Path) -> Ended:
    """Start a service; if it starts, it must respond and shut down cleanly."""
    with _started(limited([*words, "--port", "0", "--json"], gigabytes, out)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            answer = httpx.post(f"{json.loads(line)['address']}/embed", json={"texts": "the cat sat"}, timeout=60)
            if answer.status_code != 200:
                return Ended(-1, f"/embed: {answer.status_code} {answer.text[:100]}")
            process.terminate()
        err = process.communicate(timeout=60)[1]
        return Ended(0 if line and process.returncode in (0, 143) else process.returncode, err)


@contextlib.contextmanager
def _started(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | _ENVIRONMENT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
