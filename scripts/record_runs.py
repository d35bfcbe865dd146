"""Record the held-out losses of pre-training runs, which ``cloze plan`` uses to predict losses.

    python scripts/record_runs.py NAME=RUN[+RUN...]...

NAME is a short description of a run. RUN is its folder, finished or not, followed by the folders of runs that resumed
from it. Existing entries with the same name are replaced; all others are kept.

Losses refer to the sequence length used for evaluation: 32 for the points of ``mini`` up to 9.3 million tokens,
although that run had a second phase with 128 (``--length 32 --long-length 128``), and 128 for all later points.
"""

import json
import math
import sys
from pathlib import Path

from safetensors import safe_open

RECORDED = Path(__file__).parents[1] / "src/cloze/train/pretraining/recorded_runs.json"


def points(run: Path) -> list[tuple[int, float]]:
    """Return (tokens seen, held-out masked-LM loss) for each evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seen = {row["step"]: row["tokens_seen"] for row in rows if "tokens_seen" in row}
    return [(seen[row["step"]], round(row["held_out_mlm_loss"], 3)) for row in rows if "held_out_mlm_loss" in row]


def joined(runs: list[Path]) -> list[tuple[int, float]]:
    """Return the points of consecutive runs, with the tokens of all previous runs added."""
    found: list[tuple[int, float]] = []
    for run in runs:
        before = found[-1][0] if found else 0
        found += [(before + tokens, loss) for tokens, loss in points(run)]
    return found


def parameters(run: Path) -> int:
    """Return the number of parameters in the finished model, or in the newest checkpoint."""
    found = [run / "model/model.safetensors", *sorted(run.glob("checkpoints/*/model.safetensors"))]
    with safe_open(next(path for path in (found[0], *reversed(found[1:])) if path.is_file()), "np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def main() -> None:
    """Record the runs given on the command line."""
    recorded = {run["name"]: run for run in json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]}
    for word in sys.argv[1:]:
        name, _, folders = word.partition("=")
        stages = [Path(folder) for folder in folders.split("+")]
        recorded[name] = {"name": name, "parameters": parameters(stages[-1]), "points": joined(stages)}
    runs = sorted(recorded.values(), key=lambda run: run["parameters"])
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    RECORDED.write_text(f'{{"runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
