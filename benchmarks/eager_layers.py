"""Compare eager layers with TorchScript layers for int8 prediction without the compiled C kernels.

    python benchmarks/eager_layers.py [--rounds 15] [--texts 128] [--clock processor]

Both embed texts with all-MiniLM-L6-v2 in int8, using PyTorch's own kernels. They alternate per text set, and the best
round is reported. Text sets: sentences of mixed length (mixed), their first six words (short), and one short text. The
last column is the eager time divided by the TorchScript time.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import cloze
from cloze.predict import Model, load
from cloze.predict.quantization import precision
from minilm import minilm  # module in benchmarks/

TEXTS = Path(cloze.__file__).parent / "demo" / "data" / "authors_dev.tsv"
ONE_TEXT_CALLS = 20
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def text_sets(count: int) -> dict[str, list[list[str]]]:
    """Return the calls of each text set; every call embeds one list of texts."""
    lines = TEXTS.read_text(encoding="utf-8").splitlines()[1 : count + 1]
    mixed = [max(line.split("\t"), key=len) for line in lines]
    short = [" ".join(text.split()[:6]) for text in mixed]
    return {"mixed": [mixed], "short": [short], "one text": [[text] for text in short[:ONE_TEXT_CALLS]]}


def seconds(model: Model, calls: Sequence[list[str]], clock: str) -> float:
    """Return the total seconds of all calls."""
    start = CLOCKS[clock]()
    for texts in calls:
        model.embed(texts)
    return CLOCKS[clock]() - start


def main() -> None:
    """Parse the arguments and print one row per text set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--clock", choices=CLOCKS, default="processor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vars(precision)["are_native"] = lambda _: False  # simulates a machine without the C kernels
    scripted, eager = (load(minilm(), precision="int8") for _ in range(2))
    print("scripted layers:", type(scripted.bert.encoder.fused_layers.call).__name__)
    eager.bert.encoder.fused_layers = None
    print(f"{'texts':<10}{'scripted, ms':>14}{'eager, ms':>12}{'ratio':>8}")
    for name, calls in text_sets(options.texts).items():
        best = {scripted: float("inf"), eager: float("inf")}
        for _ in range(options.rounds):
            for model in best:
                best[model] = min(best[model], seconds(model, calls, options.clock))
        times = [1000 * best[model] / len(calls) for model in (scripted, eager)]
        print(f"{name:<10}{times[0]:>14.2f}{times[1]:>12.2f}{times[1] / times[0]:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
