"""Write down how held-out losses fell along finished pre-trainings: what ``cloze plan`` tells people to expect.

    python scripts/record_runs.py NAME=RUN[+RUN...]...

NAME says of each run what it was, in a few words; RUN is its folder, finished or not, and further ones are those that
went on from it. Runs of the same name are replaced, all others stay.

A loss is of the sequences that its run was looked at with. Those of ``mini`` up to 9.3 million tokens are of 32 tokens,
though the run had a second phase of 128 (``--length 32 --long-length 128``), and all later ones of 128.
"""

import json
import math
import sys
from pathlib import Path

from safetensors import safe_open

RECORDED = Path(__file__).parents[1] / "src/cloze/train/pretraining/recorded_runs.json"


def points(run: Path) -> list[tuple[int, float]]:
    """(tokens seen, held-out masked-word loss) after each evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seen = {row["step"]: row["tokens_seen"] for row in rows if "tokens_seen" in row}
    return [(seen[row["step"]], round(row["held_out_mlm_loss"], 3)) for row in rows if "held_out_mlm_loss" in row]


def joined(runs: list[Path]) -> list[tuple[int, float]]:
    """The points of runs that went on from each other, with the tokens of all before."""
    found: list[tuple[int, float]] = []
    for run in runs:
        before = found[-1][0] if found else 0
        found += [(before + tokens, loss) for tokens, loss in points(run)]
    return found


def parameters(run: Path) -> int:
    """How many the model has, by its weights: the finished ones, or those of the newest checkpoint."""
    found = [run / "model/model.safetensors", *sorted(run.glob("checkpoints/*/model.safetensors"))]
    with safe_open(next(path for path in (found[0], *reversed(found[1:])) if path.is_file()), "np") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def main() -> None:
    """Add the runs."""
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
