"""``cloze quantize`` and ``cloze export``."""

from pathlib import Path

from cloze.cli.console import print_json, print_table
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL, shipped_folder

OUR_TEXTS = 200


def quantize(
    *,
    model: str = SHIPPED_MODEL,
    out: Path | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    task: str | None = None,
    data: Path | None = None,
    json: bool = False,
) -> None:
    """Write int8 weights beside a model, and say what they bring and cost: size, speed, likeness, score.

    Args:
        model: A model folder, or a hub name.
        out: A folder for a copy of the model with the int8 weights; beside the model itself if left out.
        input: A file with a text a line, to compare int8 and float32 on; paragraphs and odd texts of ours if left out.
        task: A task to score both on, such as sst-2 or classify.
        data: The file or folder of the task.
        json: Print JSON.
    """
    if (task is None) != (data is None):
        raise ConfigError("--task and --data belong together; give both, or neither")
    if out is None and shipped_folder(model) is not None:
        raise ConfigError(f"{model} comes with the package and is left as it is; give --out FOLDER for a copy")
    from cloze.cli.inputs import gather_texts
    from cloze.demo.flow import DATA
    from cloze.predict.quantization.quantize import quantize as run
    from cloze.tasks.source import Source

    texts = gather_texts(None, input).texts if input else gather_texts(None, DATA / "authors_dev.tsv").texts[:OUR_TEXTS]
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
    if not report.near:
        print("int8 changes this model's vectors too much for --precision auto; --precision int8 uses it all the same")
    elif report.far:
        far = ", ".join(report.far)
        print(f"int8 changes odd texts more than others ({far}); if yours are like them, give some with --input")


def export(*, model: str = SHIPPED_MODEL, out: Path, json: bool = False) -> None:
    """Write a model as an ONNX graph, with the tokenizer's files beside it.

    Args:
        model: A model folder, or a hub name.
        out: The folder to write.
        json: Print JSON.
    """
    from cloze.checkpoint import find_source, load_any
    from cloze.predict.onnx_export import export_onnx

    graph = export_onnx(load_any(find_source(model)), out)
    if json:
        print_json({"graph": str(graph), "bytes": graph.stat().st_size})
    else:
        print(f"{graph}: {graph.stat().st_size / 2**20:.1f} MB")
