"""Compare training with two processes of one thread each (DDP and FSDP2) with one process with two threads.

    python benchmarks/ranks.py [--preset mini] [--steps 40] [--rounds 3] [--precision fp32]

All variants run the same training on the bundled books and alternate. Tokens per second come from the runs' own
metrics, without the first ten steps. The last column checks that the losses agree: the final loss, and the largest
relative deviation of the loss curve from that of one process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import VocabularySettings
from cloze.demo.flow import DATA

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cloze")
VARIANTS = {
    "one process, two threads": (("-m", "cloze"), ("--threads", "2")),
    "two processes, ddp": (TORCHRUN, ("--threads", "1")),
    "two processes, fsdp": (TORCHRUN, ("--threads", "1", "--parallel", "fsdp")),
}


def train(
    variant: str, data: Path, out: Path, preset: str, steps: int, precision: str = "auto"
) -> tuple[float, list[float]]:
    """Train once; return tokens per second and the losses."""
    launcher, flags = VARIANTS[variant]
    words = ["pretrain", str(data), "--out", str(out), "--preset", preset, "--steps", str(steps), "--dropout", "0"]
    words += ["--precision", precision]
    subprocess.run([sys.executable, *launcher, *words, *flags], check=True, capture_output=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if "tokens_per_second" in row]
    return mean(row["tokens_per_second"] for row in measured[1:]), [row["loss"] for row in measured]


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Compare training with two processes to one.")
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    arguments = parser.parse_args()
    speeds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vocabulary = train_vocabulary([DATA / "books.txt.xz"], folder / "v", settings=VocabularySettings(size=6000))
        data = prepare([DATA / "books.txt.xz"], vocabulary, folder / "data")
        for number in range(arguments.rounds):
            for variant in VARIANTS:
                out = folder / f"{variant}-{number}"
                speed, losses[variant] = train(
                    variant, data, out, arguments.preset, arguments.steps, arguments.precision
                )
                speeds[variant].append(speed)
    alone = "one process, two threads"
    for variant, values in speeds.items():
        ratio = median(value / one for value, one in zip(values, speeds[alone], strict=True))
        apart = max(abs(loss / one - 1) for loss, one in zip(losses[variant], losses[alone], strict=True))
        print(
            f"{variant:<26} {median(values):7,.0f} tokens/s  {ratio:.2f} of one process  "
            f"last loss {losses[variant][-1]:.6f}, largest deviation {apart:.1e}"
        )


if __name__ == "__main__":
    main()
