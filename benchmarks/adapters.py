"""Changing between adapters on one loaded base, and what an adapter takes on disk and in training.

    python benchmarks/adapters.py [--model FOLDER] [--changes 200]

Prints how long a change takes beside loading a whole model again, and the size of each kind of adapter folder beside
its base. Without --model a random model of the shape of BERT-base is made.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import cloze
from cloze.checkpoint import AdapterOf, ModelFolder, TaskLabels, load_folder, save_adapter, save_folder
from cloze.checkpoint.adapter_folder import weights_fingerprint
from cloze.model import Bert, preset
from cloze.model.adapters import Attachment, attach
from cloze.text import SPECIAL, Tokenizer

KINDS = {
    "houlsby 64": Attachment("houlsby", "sequence", 2, size=64, pooler=True),
    "lora 8": Attachment("lora", "sequence", 2, size=8, pooler=True),
    "frozen, last, linear": Attachment("features", "sequence", 2, size=768),
}


def make_base(folder: Path) -> Path:
    """A random model with a vocabulary of nothing in particular."""
    pieces = [*SPECIAL, *(f"word{number}" for number in range(30522 - len(SPECIAL)))]
    bert = Bert.fresh(preset("base"), ("mlm", "nsp"))
    save_folder(ModelFolder(bert, Tokenizer.from_vocabulary(pieces, lowercase=True)), folder)
    return folder


def make_adapter(base: Path, folder: Path, attachment: Attachment) -> float:
    """A fresh adapter on disk; returns the share of the parameters that it trains."""
    contents = load_folder(base)
    whole = contents.model.parameter_count()
    attach(contents.model, attachment, seed=0)
    trained = sum(parameter.numel() for parameter in contents.model.parameters() if parameter.requires_grad)
    adapter = AdapterOf(attachment, str(base), base, weights_fingerprint(base))
    save_adapter(replace(contents, task=TaskLabels("classify", ("no", "yes")), adapter=adapter), folder)
    return trained / whole


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--changes", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        base = arguments.model or make_base(place / "base")
        shares = {kind: make_adapter(base, place / kind, attachment) for kind, attachment in KINDS.items()}
        started = time.perf_counter()
        model = cloze.load(base, device="cpu")
        loading = time.perf_counter() - started
        for kind in KINDS:
            model.attach(kind, place / kind)
        print(f"{'kind':<22}{'trained':>9}{'folder':>12}{'of base':>9}{'change (ms)':>13}{'loading / change':>18}")
        for kind in KINDS:
            times = []
            for _ in range(arguments.changes):
                model.use(None)
                started = time.perf_counter()
                model.use(kind)
                times.append(time.perf_counter() - started)
            change = sorted(times)[len(times) // 2]
            taken = size(place / kind)
            print(
                f"{kind:<22}{shares[kind]:>9.2%}{taken / 2**20:>8.2f} MiB{taken / size(base):>9.2%}"
                f"{1000 * change:>13.3f}{loading / change:>18,.0f}"
            )


if __name__ == "__main__":
    main()
