"""Commands on model folders: ``cloze extend``, ``convert``, ``quantize``, ``export``; and ``models``, ``doctor``."""

import os
import platform
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from cloze.cli.console import Machine, print_json, print_table
from cloze.cli.outputs import check_file, check_folder
from cloze.errors import ConfigError
from cloze.models import PACKAGED_MODELS, SENTENCE_MODEL, SHIPPED_MODEL, SHIPPED_MODELS, named_folder, shipped_folder

if TYPE_CHECKING:
    from cloze.checkpoint.convert import ExtensionReport

HERE = Machine()
LIBRARIES = (
    "torch",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "scikit-learn",
    "cyclopts",
    "sentencex",
    "rjieba",
)


def extend(
    *,
    model: str = SHIPPED_MODEL,
    out: Path,
    words: Path | None = None,
    entities: Path | None = None,
    characters: bool = False,
    look_alikes: bool = False,
    similar: Path | None = None,
    positions: int | None = None,
    segments: int | None = None,
    start: Literal["pieces", "random"] = "pieces",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Add words, entities, positions or segments to a model, and enable handling of unknown words.

    Args:
        model: A model folder, a folder with only a vocabulary, or a hub name.
        out: The folder to write to.
        words: A file with one word per line; each gets a vocabulary entry that matches whole words only.
        entities: A map from names to known words: TSV (name, words, optional type) or JSONL.
        characters: Split words that would be [UNK] into known characters.
        look_alikes: Replace unknown characters with known variants: full-width, compatibility forms, or no accents.
        similar: A tab-separated map between characters, such as traditional to simplified; enables --look-alikes.
        positions: Maximum sequence length; new positions start as copies of the old ones, in order.
        segments: Number of segment embeddings; new ones start as copies of the last one.
        start: Initial vectors of new words: pieces (the mean of the vectors of a word's pieces) or random.
        seed: Random seed for the initial vectors.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.checkpoint.convert import extend as run

    done = run(
        model,
        out,
        words=words,
        entities=entities,
        characters=characters,
        look_alikes=look_alikes,
        similar=similar,
        positions=positions,
        segments=segments,
        start=start,
        seed=seed,
    )
    if json:
        print_json({**asdict(done), "folder": str(done.folder)})
        return
    _print_extended(done, words=words is not None, lengthened=positions is not None or segments is not None)


def _print_extended(done: "ExtensionReport", *, words: bool, lengthened: bool) -> None:
    print(f"{done.folder}: {done.pieces:,} pieces, {done.entities:,} entities")
    if lengthened:
        print(f"{done.positions:,} positions, {done.segments} segments")
    if words:
        print(
            f"{done.words:,} words added: {done.words - done.grown:,} in unused entries, {done.grown:,} in new entries"
        )
    if done.known:
        shown = ", ".join(done.known[:5]) + (", ..." if len(done.known) > 5 else "")
        print(f"{len(done.known):,} already known: {shown}")


def convert(source: str, destination: Path, /, *, half: bool = False, json: bool = False) -> None:
    """Convert a checkpoint to a model folder that cloze, transformers and sentence-transformers load.

    Static vectors are converted to and from the file formats of word2vec: text (.txt, .vec) and binary (.bin).

    Args:
        source: A TensorFlow checkpoint (its folder or .index file), an HF folder, a LoRA adapter, or a hub name; or a
            file of word vectors.
        destination: The folder to write to; for a model of static vectors, also a file of word vectors.
        half: Write the weights as float16, which halves their size; computation still uses float32.
        json: Print JSON.
    """
    from cloze.checkpoint.convert import convert as convert_model
    from cloze.checkpoint.convert import convert_vectors
    from cloze.checkpoint.word2vec_file import SUFFIXES

    if destination.suffix in SUFFIXES:
        check_file(destination, SUFFIXES)
    else:
        check_folder(destination, "")
    is_vectors = Path(source).suffix in SUFFIXES or destination.suffix in SUFFIXES
    contents = (convert_vectors if is_vectors else convert_model)(source, destination, half=half)
    facts = {
        "folder": str(destination),
        "parameters": contents.model.parameter_count(),
        "heads": list(contents.model.head_names),
        "pieces": contents.tokenizer.size,
        "cased": not contents.tokenizer.lowercase,
        "notes": list(contents.notes),
    }
    if json:
        print_json(facts)
        return
    kind = "cased" if facts["cased"] else "uncased"
    heads = ", ".join(contents.model.head_names) or "none"
    print(f"{destination}: {facts['parameters']:,} parameters, heads: {heads}; {facts['pieces']:,} pieces, {kind}")
    for note in contents.notes:
        print(f"note: {note}")


def doctor(*, json: bool = False) -> None:
    """Show versions and hardware, ready to paste into a bug report.

    Args:
        json: Print JSON.
    """
    facts = _facts()
    if json:
        print_json(facts)
    else:
        print_table(("cloze doctor", ""), list(facts.items()))


def _facts() -> dict[str, object]:
    import torch

    from cloze import __version__
    from cloze.predict.quantization.native.kernels import library
    from cloze.predict.quantization.precision import has_fast_bf16

    facts: dict[str, object] = {
        "cloze": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": _memory(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16 in hardware": torch.cpu._is_avx512_bf16_supported(),
        "bf16 faster than fp32": has_fast_bf16(torch.device("cpu")),
        "int8 in hardware (VNNI)": torch.cpu._is_vnni_supported(),
        "int8 compiled for it": library() is not None,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "mps": torch.backends.mps.is_available(),
    }
    return facts | {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


BUNDLED_TEXTS = 200


def quantize(
    *,
    model: str = SHIPPED_MODEL,
    out: Path | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    task: str | None = None,
    data: Path | None = None,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Write int8 weights next to a model, and compare them with float32: size, speed, similarity, score.

    Args:
        model: A model folder, or a hub name.
        out: A folder for a copy of the model with int8 weights; by default, they are written to the model's folder.
        input: A file with one text per line to compare int8 and float32 on; by default, bundled texts.
        task: A task to evaluate int8 and float32 on, such as sst-2 or classify.
        data: With --task: the file or folder of the task.
        json: Print JSON.
    """
    if (task is None) != (data is None):
        raise ConfigError("--task and --data belong together; give both, or neither")
    if out is None and named_folder(model) is not None:
        raise ConfigError(f"{model} belongs to an installed package and is not changed; give --out FOLDER for a copy")
    check_folder(out)
    if machine.use() not in (None, "cpu"):
        raise ConfigError(f"device is {machine.device}, but int8 only runs on the CPU; leave it out")
    from cloze.cli.inputs import bundled_paragraphs, gather_texts
    from cloze.predict.quantization.quantize import quantize as run
    from cloze.tasks.rows import Source

    texts = gather_texts(None, input).texts if input else bundled_paragraphs()
    source = None if task is None or data is None else Source(task, data)
    report = run(model, texts, out=out, task=source, with_odd=input is None)
    if json:
        print_json(report.facts())
        return
    rows: list[tuple[str, str]] = [
        ("weights", f"{report.bytes / 2**20:.1f} MB, {report.bytes / report.float_bytes:.0%} of float32's"),
        ("speed", f"{report.speedup:.2f} x float32's"),
        ("cosine to float32", f"{report.least_cosine:.4f} at the least, {report.mean_cosine:.4f} mean"),
    ]
    kinds = dict(report.kinds) | ({"all of them": report.least_of_all} if report.kinds else {})
    rows += [(f"cosine, {kind}", f"{least:.4f} at the least") for kind, least in kinds.items()]
    for precision, scores in report.scores.items():
        rows += [(f"{name}, {precision}", f"{value:.4f}") for name, value in scores.items()]
    print_table((report.file, f"on {report.texts:,} texts"), rows)
    if report.difference is not None:
        metric = next(iter(report.scores["int8"]))
        print(f"int8 against fp32, {metric}: {report.difference.in_points('difference')}")
    if not report.near:
        print("int8 changes this model's vectors too much for --precision auto; --precision int8 uses it anyway")
    elif report.far:
        far = ", ".join(report.far)
        print(
            f"int8 changes unusual texts more than others ({far}); if your texts are like these, measure them with "
            f"--input"
        )


def export(
    *,
    model: str = SHIPPED_MODEL,
    out: Path,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Write a model as an ONNX graph, with the tokenizer's files next to it.

    Args:
        model: A model folder, or a hub name.
        out: The folder to write to.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.checkpoint import find_source, load_any
    from cloze.predict.loading import export_onnx

    graph = export_onnx(load_any(find_source(model)), out, device=machine.use())
    if json:
        print_json({"graph": str(graph), "bytes": graph.stat().st_size})
    else:
        print(f"{graph}: {graph.stat().st_size / 2**20:.1f} MB")


def models(*, json: bool = False) -> None:
    """List the models that commands know by name: shipped, installable with pip, or previously downloaded from the hub.

    Two English models are shipped. cloze-mini is for filling blanks, scoring and tagging words, and further
    pre-training; cloze-mini-sentence for sentence vectors, search and classifiers. Larger models, such as
    all-MiniLM-L6-v2, give better scores.

    Args:
        json: Print JSON.
    """
    from cloze.models import cached_models

    found = [("shipped", model) for model in SHIPPED_MODELS if shipped_folder(model.name) is not None]
    found += [("installed" if one.find() else one.install, one.purpose) for one in PACKAGED_MODELS]
    found += [("downloaded", model) for model in cached_models()]
    if json:
        for origin, model in found:
            print_json({"origin": origin, **asdict(model)})
        return
    for origin, model in found:
        about = ", ".join(filter(None, (model.language, model.shape)))
        print(f"{model.name} ({origin})" + (f": {about}" if about else ""))
        print(f"  for: {model.good_for}\n  not for: {model.not_for}")
    print(f"Default of --model: {SENTENCE_MODEL} for vectors and tasks on whole texts, else {SHIPPED_MODEL}")
    print("Other models: --model with a folder, a run, or a hub name such as google-bert/bert-base-uncased")
