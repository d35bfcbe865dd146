"""Ablate pre-training choices: each run differs in one setting from token masking with next-sentence prediction.

    python benchmarks/choices.py --text runs/mini/train.txt --held-out runs/mini/held_out.txt [--steps 6000]

Every run trains `tiny` from the same initial weights, for the same number of updates and tokens, on the same ten
megabytes of books. Each is evaluated on the same masked tokens of held-out books and fine-tuned on two tasks with three
seeds. Prints for each run the loss and accuracy on masked tokens, then the mean and standard deviation of the task
scores. Results are stored in --out; re-running the same command resumes from them.
"""

import argparse
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from cloze.corpus.documents import read_documents
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import VocabularySettings
from cloze.files import replace_json
from cloze.predict import evaluate
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.pretraining.held_out import evaluate_masked_words
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import MlmEvaluationSettings, PretrainSettings
from first_rows import first_rows  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

TEXT_BYTES = 10_000_000
# Short sequences come first: with 64 tokens alone, a model this narrow does not start to learn within ten minutes.
BASE = PretrainSettings(
    preset="tiny",
    batch_size=64,
    max_length=32,
    long_length=64,
    long_share=0.6,
    learning_rate=2e-3,
    save_every=500,
    evaluate_every=1000,
)
CHOICES: dict[str, dict[str, Any]] = {
    "token + nsp": {},
    "word": {"masking": "word"},
    "span": {"masking": "span"},
    "sop": {"objective": "sop"},
    "none": {"objective": "none"},
    "all [MASK]": {"mask_mix": (1.0, 0.0, 0.0)},
    "static": {"static": 1},
}
TUNING = FinetuneSettings(epochs=3, batch_size=32, max_length=64, learning_rate=3e-4)
METRICS = {"sst-2": "accuracy", "sts-b": "spearman"}


def main() -> None:
    """Pre-train, evaluate, fine-tune and print."""
    parser = argparse.ArgumentParser(description="Ablate pre-training choices, one setting per run.")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    add_data(parser)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=CHOICES, default=list(CHOICES), help="these, say beside the others"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/choices"))
    arguments = parser.parse_args()
    glue = find_data(arguments.data, "glue/SST-2", "glue/STS-B") / "glue"
    torch.set_num_threads(1)
    data = _corpus(arguments.text, arguments.out)
    places = {"sst-2": first_rows(glue / "SST-2", arguments.out / "SST-2"), "sts-b": glue / "STS-B"}
    rows = {}
    for name in arguments.only:
        change = CHOICES[name]
        folder = arguments.out / name.replace(" ", "-").replace("[", "").replace("]", "")
        run = pretrain(data, folder / "run", settings=replace(BASE, steps=arguments.steps, **change))
        rows[name] = _scores(run, folder, arguments.held_out, places, arguments.seeds)
        print(_line(name, rows[name]), flush=True)
    replace_json(arguments.out / "table.json", rows)


def _corpus(text: Path, out: Path) -> Path:
    """Write every tenth document of the text, so that the sample covers many books."""
    out.mkdir(parents=True, exist_ok=True)
    sample = out / "text.txt"
    if not sample.is_file():
        size, parts = 0, []
        for document in islice(read_documents([text]), 0, None, 10):
            part = "\n".join(document) + "\n"
            size += len(part)
            parts.append(part)
            if size > TEXT_BYTES:
                break
        sample.write_text("\n".join(parts), encoding="utf-8")
        train_vocabulary([sample], out / "vocabulary", settings=VocabularySettings(size=8000))
    return prepare([sample], out / "vocabulary", out / "data")


def _scores(run: Path, folder: Path, held_out: Path, places: dict[str, Path], seeds: int) -> dict[str, object]:
    kept = folder / "scores.json"
    if kept.is_file():
        scores: dict[str, object] = json.loads(kept.read_text(encoding="utf-8"))
        return scores
    blanks = evaluate_masked_words(
        [held_out], run, settings=MlmEvaluationSettings(max_length=64, mask_mix=(1.0, 0.0, 0.0))
    )
    scores = {"mlm_loss": blanks["mlm_loss"], "mlm_accuracy": blanks["mlm_accuracy"]}
    for task, metric in METRICS.items():
        scores[task] = [_tune(task, places[task], metric, run, folder, seed) for seed in range(seeds)]
    replace_json(kept, scores)
    return scores


def _tune(task: str, data: Path, metric: str, run: Path, folder: Path, seed: int) -> float:
    tuned = run_finetuning(Source(task, data), run, folder / f"{task}-{seed}", settings=replace(TUNING, seed=seed))
    return float(evaluate(tuned, Source(task, data)).metrics[metric])


def _line(name: str, scores: dict[str, object]) -> str:
    cells = [f"{name:<14} loss {scores['mlm_loss']:.3f} accuracy {scores['mlm_accuracy']:.1%}"]
    for task in METRICS:
        values = scores[task]
        assert isinstance(values, list)
        cells.append(f"{task} {mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}")
    return "  ".join(cells)


if __name__ == "__main__":
    main()
