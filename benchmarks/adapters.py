"""Switch between task adapters on one loaded base model; measure their size, parameter share and switching time.

    python benchmarks/adapters.py [--rows 800] [--scored 100] [--threads 1]

The first table: `finetune` trains three adapters on all-MiniLM-L6-v2 (MRPC, SST-2 and STS-B, the first rows of each,
one epoch). A single model, loaded once, then predicts their dev rows one by one and switches the adapter before every
prediction. Each output is compared with that adapter's output when loaded alone. The second table lists the kinds of
adapters on a random model of BERT-base's shape (or on --model): the share of parameters that each trains, its size on
disk, and its switching time.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

import cloze
from cloze.checkpoint import AdapterInfo, ModelFolder, TaskLabels, load_folder, save_adapter, save_folder
from cloze.checkpoint.folder import weights_fingerprint
from cloze.model import Bert, preset
from cloze.model.adapters import Attachment, attach
from cloze.options import AdapterKind
from cloze.predict import Model
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.metrics import score
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from cloze.text import SPECIAL, Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from first_rows import first_rows  # module in benchmarks/
from minilm import minilm
from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
Floats = NDArray[np.float32]
TASKS: dict[str, tuple[str, AdapterKind]] = {
    "mrpc": ("MRPC", "houlsby"),
    "sst-2": ("SST-2", "lora"),
    "sts-b": ("STS-B", "houlsby"),
}
KINDS = {
    "houlsby 64": Attachment("houlsby", "sequence", 2, size=64, pooler=True),
    "lora 8": Attachment("lora", "sequence", 2, size=8, pooler=True),
    "frozen, last, linear": Attachment("features", "sequence", 2, size=768),
}


@dataclass(frozen=True)
class Trained:
    """A task, its rows, and the run that trained its adapter."""

    name: str
    data: TaskData
    run: Path

    @property
    def dev(self) -> LabelledTexts:
        """Return the dev rows."""
        assert isinstance(self.data.dev, LabelledTexts)
        return self.data.dev

    def answer(self, model: Model, row: int) -> Floats:
        """Return the raw outputs for one row, computed in a separate batch."""
        pair = None if self.dev.pairs is None else [self.dev.pairs[row]]
        found: Floats = model.logits([self.dev.texts[row]], pair)[0]
        return found

    def score(self, answers: Sequence[Floats]) -> str:
        """Return the metrics and their values as text."""
        found = np.stack(answers)
        predictions = found[:, 0] if self.data.kind.targets == "number" else found.argmax(1)
        values = score(self.data.metrics, list(self.dev.targets or ()), predictions.tolist())
        return ", ".join(f"{metric} {value:.3f}" for metric, value in values.items())


def train(name: str, data: Path, place: Path, rows: int, scored: int) -> Trained:
    """Train an adapter on the first rows of a task."""
    folder, kind = TASKS[name]
    source = Source(name, first_rows(data / "glue" / folder, place / folder, rows, scored))
    settings = FinetuneSettings(epochs=1, batch_size=16, max_length=128, adapter=kind)
    return Trained(name, read_task(source), run_finetuning(source, minilm(), place / name, settings=settings))


def timed_use(model: Model, name: str | None) -> float:
    """Return the seconds that switching to an adapter takes."""
    started = time.perf_counter()
    model.use(name)
    return time.perf_counter() - started


def answer_in_turns(tasks: Sequence[Trained]) -> None:
    """Predict all rows with one model, compare the outputs with each adapter alone, and print a table."""
    started = time.perf_counter()
    model = cloze.load(minilm(), device="cpu")
    loading = time.perf_counter() - started
    for task in tasks:
        model.attach(task.name, task.run)
    answers: dict[str, list[Floats]] = {task.name: [] for task in tasks}
    times: dict[str, list[float]] = {task.name: [] for task in tasks}
    for row in range(max(len(task.dev) for task in tasks)):
        for task in tasks:
            if row < len(task.dev):
                times[task.name].append(timed_use(model, task.name))
                answers[task.name].append(task.answer(model, row))
    print(f"{'task':<8}{'adapter':<10}{'rows':>5}  {'scores':<32}{'as alone':>9}{'switch: median, max (ms)':>28}")
    for task in tasks:
        alone = cloze.load(task.run, device="cpu")
        same = sum(
            np.array_equal(task.answer(alone, row), predictions) for row, predictions in enumerate(answers[task.name])
        )
        took = [1000 * seconds for seconds in times[task.name]]
        print(
            f"{task.name:<8}{TASKS[task.name][1]:<10}{len(took):>5}  {task.score(answers[task.name]):<32}"
            f"{f'{same}/{len(took)}':>9}{f'{median(took):.3f}, {max(took):.3f}':>28}"
        )
        if same < len(took):
            raise SystemExit(f"{task.name}: {len(took) - same} answers differ from those of the adapter loaded alone")
    print(f"loading the base took {1000 * loading:.0f} ms")


def make_base(folder: Path) -> Path:
    """Save a random model with an arbitrary vocabulary."""
    pieces = [*SPECIAL, *(f"word{number}" for number in range(30522 - len(SPECIAL)))]
    bert = Bert.fresh(preset("base"), ("mlm", "nsp"))
    save_folder(ModelFolder(bert, Tokenizer.from_vocabulary(pieces, lowercase=True)), folder)
    return folder


def make_adapter(base: Path, folder: Path, attachment: Attachment) -> float:
    """Save a new adapter; return the share of the parameters that it trains."""
    contents = load_folder(base)
    whole = contents.model.parameter_count()
    attach(contents.model, attachment, seed=0)
    trained = sum(parameter.numel() for parameter in contents.model.parameters() if parameter.requires_grad)
    adapter = AdapterInfo(attachment, str(base), base, weights_fingerprint(base))
    save_adapter(replace(contents, task=TaskLabels("classify", ("no", "yes")), adapter=adapter), folder)
    return trained / whole


def size(folder: Path) -> int:
    """Return the total size in bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def compare_kinds(base: Path, place: Path, changes: int) -> None:
    """Print parameters, size and switching time of each kind of adapter; random weights suffice for this."""
    shares = {kind: make_adapter(base, place / kind, attachment) for kind, attachment in KINDS.items()}
    model = cloze.load(base, device="cpu")
    for kind in KINDS:
        model.attach(kind, place / kind)
    print(f"{'kind':<22}{'trained':>9}{'folder':>12}{'of base':>9}{'switch: median, max (ms)':>28}")
    for kind in KINDS:
        times = []
        for _ in range(changes):
            model.use(None)
            times.append(1000 * timed_use(model, kind))
        taken = size(place / kind)
        print(
            f"{kind:<22}{shares[kind]:>9.2%}{taken / 2**20:>8.2f} MiB{taken / size(base):>9.2%}"
            f"{f'{median(times):.3f}, {max(times):.3f}':>28}"
        )


def main() -> None:
    """Parse the arguments and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--rows", type=int, default=800, help="training rows per task (default: 800)")
    parser.add_argument("--scored", type=int, default=100, help="dev rows per task (default: 100)")
    parser.add_argument("--model", type=Path, help="base model of the second table (default: random weights)")
    parser.add_argument(
        "--changes", type=int, default=200, help="adapter switches per kind in the second table (default: 200)"
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "glue")
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        answer_in_turns([train(task, arguments.data, place, arguments.rows, arguments.scored) for task in TASKS])
        print()
        compare_kinds(arguments.model or make_base(place / "base"), place, arguments.changes)


if __name__ == "__main__":
    main()
