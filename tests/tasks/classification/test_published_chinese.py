"""Synthetic files in the published formats."""

from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.registry import find_task, read_task
from cloze.tasks.rows import Source

FILES = {
    "chnsenticorp/train.tsv": 'label\ttext_a\n1\t酒店"很好。\n0\t房间太小\n',
    "chnsenticorp/dev.tsv": "label\ttext_a\n0\t书不好看\n",
    "chnsenticorp/test.tsv": "label\ttext_a\n1\t电脑不错\n",
    "LCQMC/train.txt": "开初婚证明怎么弄？\t初婚证明怎么开？\t1\n",
    "LCQMC/dev.txt": '"谁\t爱情\t0\n',
    "AFQMC/train.json": '{"sentence1": "花呗", "sentence2": "借呗", "label": "0"}\n',
    "AFQMC/dev.txt": "双十一\t花呗额度\t1\n",
    "AFQMC/test.txt": "双十一\t花呗额度\n",
    "Chinese-STS-B/sts-b-train.txt": "一架飞机。\t一架飞机正在起飞。\t5\n",
    "Chinese-STS-B/sts-b-dev.txt": "孩子在骑马。\t一个小孩在骑马。\t4\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("task", "train", "dev"),
    [
        ("chnsenticorp", [('酒店"很好。', None, 1), ("房间太小", None, 0)], [("书不好看", None, 0)]),
        ("LCQMC", [("开初婚证明怎么弄？", "初婚证明怎么开？", 1)], [('"谁', "爱情", 0)]),
        ("afqmc", [("花呗", "借呗", 0)], [("双十一", "花呗额度", 1)]),
        ("sts-b-zh", [("一架飞机。", "一架飞机正在起飞。", 5.0)], [("孩子在骑马。", "一个小孩在骑马。", 4.0)]),
    ],
)
def test_published_files_are_read_as_they_are(
    folder: Path, task: str, train: list[tuple[object, ...]], dev: list[tuple[object, ...]]
) -> None:
    data = read_task(Source(task, folder))
    assert rows(data.train) == train
    assert rows(data.dev) == dev
    assert data.metrics[0] == ("spearman" if task == "sts-b-zh" else "accuracy")


def rows(examples: object) -> list[tuple[object, ...]]:
    assert isinstance(examples, LabelledTexts)
    nothing: list[str | None] = [None] * len(examples)
    pairs = examples.pairs or nothing
    assert examples.targets is not None
    return list(zip(examples.texts, pairs, examples.targets, strict=True))


def test_test_rows_with_and_without_labels(folder: Path) -> None:
    spec = find_task("chnsenticorp")
    read = spec.read(Source("chnsenticorp", folder), "test", None)
    assert rows(read.examples) == [("电脑不错", None, 1)]
    with pytest.raises(DataError, match="afqmc: the labels of its test rows are not published"):
        find_task("afqmc").read(Source("afqmc", folder), "test", None)


def test_a_missing_file_is_named_with_its_spellings(folder: Path) -> None:
    (folder / "AFQMC" / "train.json").unlink()
    with pytest.raises(DataError, match=r"AFQMC has no train.txt or train.json \(plain or compressed\)"):
        read_task(Source("afqmc", folder))
