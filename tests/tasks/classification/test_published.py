"""Synthetic files in the published formats, including byte order marks, quotes and missing headers."""

import lzma
from collections.abc import Sequence
from pathlib import Path

import pytest

from cloze.errors import ConfigError, DataError
from cloze.tasks.classification.kind import classification_examples, find_labels, regression_examples
from cloze.tasks.classification.published import GLUE, find_glue_task, read_split
from cloze.tasks.metrics import METRICS

MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\t"
)
MNLI_CELLS = "0\t1\t1n\tgovernment\t( a )\t( b )\t(R a)\t(R b)\tOne.\tTwo.\tneutral\t"
STS_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STS_CELLS = "0\tmain\tMSRvid\t2012\t0001\tnone\tnone\tA plane.\tAn air plane."

FILES = {
    "CoLA/train.tsv": "gj04\t1\t\tOne more.\ngj04\t0\t*\tThey drank the pub.",
    "CoLA/dev.tsv": 'gj04\t1\t\tThe "sailors rode.\n',
    "CoLA/test.tsv": "index\tsentence\n0\tBill whistled.\n",
    "SST-2/dev.tsv": "sentence\tlabel\nit 's a charming journey . \t1\n",
    "MRPC/train.tsv": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said " no .\tNo .\n',
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tA .\tB .\n",
    "STS-B/train.tsv": f"{STS_HEADER}\tscore\n{STS_CELLS}\t4.250\n",
    "STS-B/test.tsv": f"{STS_HEADER}\n{STS_CELLS}\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n4\t5\t6\tX\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n1\tC.\tD.\tentailment\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n",
    "MNLI/train.tsv": f"{MNLI_HEADER}gold_label\n{MNLI_CELLS}neutral\n",
    "MNLI/dev_matched.tsv": f"{MNLI_HEADER}label2\tgold_label\n{MNLI_CELLS}neutral\tcontradiction\n",
    "MNLI/dev_mismatched.tsv": f"{MNLI_HEADER}label2\tgold_label\n{MNLI_CELLS}neutral\tentailment\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("task", "split", "expected"),
    [
        ("cola", "train", [("One more.", None, 1), ("They drank the pub.", None, 0)]),
        ("cola", "dev", [('The "sailors rode.', None, 1)]),
        ("sst-2", "dev", [("it 's a charming journey . ", None, 1)]),
        ("sst2", "dev", [("it 's a charming journey . ", None, 1)]),
        ("mrpc", "train", [('He said " no .', "No .", 1)]),
        ("QQP", "train", [("Why?", "How?", 0)]),
        ("qnli", "dev", [("Who?", "He.", 0)]),
        ("rte", "train", [("A.", "B.", 1), ("C.", "D.", 0)]),
        ("wnli", "dev", [("A.", "B.", 1)]),
        ("mnli", "train", [("One.", "Two.", 2)]),
        ("mnli", "dev", [("One.", "Two.", 0)]),
        ("mnli", "dev_mismatched", [("One.", "Two.", 1)]),
    ],
)
def test_published_forms(folder: Path, task: str, split: str, expected: list[tuple[str, str | None, int]]) -> None:
    labels = find_glue_task(task).labels
    assert labels is not None
    examples = classification_examples(read_split(find_glue_task(task), folder, split), labels)
    assert examples.targets is not None
    pairs: Sequence[str | None] = examples.pairs or [None] * len(examples)
    assert list(zip(examples.texts, pairs, examples.targets, strict=True)) == expected


def test_scores_are_numbers(folder: Path) -> None:
    examples = regression_examples(read_split(find_glue_task("stsb"), folder, "train"))
    assert (examples.texts, examples.pairs, examples.targets) == (["A plane."], ["An air plane."], [4.25])


@pytest.mark.parametrize("task", ["cola", "mrpc", "sts-b"])
def test_test_files_bear_no_labels(folder: Path, task: str) -> None:
    assert [row.label for row in read_split(find_glue_task(task), folder, "test")] == [None]


def test_lines_of_qqp_that_lack_cells_are_counted(folder: Path) -> None:
    rows = read_split(find_glue_task("qqp"), folder, "train")
    assert len(list(rows)) == 1
    assert rows.skipped == 1
    with pytest.raises(DataError, match=r"train\.tsv:3: 4 cells, but there are 6 columns"):
        list(read_split(find_glue_task("qqp"), folder, "train", on_bad_row="stop"))


def test_the_folder_of_the_task_itself_and_compressed_files(folder: Path) -> None:
    plain = folder / "RTE" / "train.tsv"
    (folder / "RTE" / "train.tsv.xz").write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    [first, _] = read_split(find_glue_task("rte"), folder / "RTE", "train")
    assert first.place == f"{folder}/RTE/train.tsv.xz:2"


def test_fixed_orders_are_those_of_sorted_data(folder: Path) -> None:
    assert find_labels(read_split(find_glue_task("rte"), folder, "train")) == GLUE["rte"].labels


def test_tasks_are_consistent() -> None:
    assert len(GLUE) == 9
    for name, task in GLUE.items():
        assert task.name == name
        assert task.main in task.metrics
        assert set(task.metrics) <= set(METRICS)


def test_complaints(folder: Path) -> None:
    with pytest.raises(ConfigError) as task:
        read_split(find_glue_task("mrcp"), folder, "train")
    assert str(task.value) == "GLUE has no task 'mrcp'; did you mean 'mrpc'?"
    with pytest.raises(ConfigError) as split:
        read_split(find_glue_task("cola"), folder, "devel")
    assert str(split.value) == "cola has no split 'devel'; did you mean 'dev'?"
    with pytest.raises(DataError) as missing:
        read_split(find_glue_task("qnli"), folder, "train")
    assert str(missing.value) == (f"{folder}/QNLI has no train.tsv (plain or compressed); expected QNLI as published")
    with pytest.raises(DataError) as nowhere:
        read_split(find_glue_task("qnli"), folder / "x", "train")
    assert str(nowhere.value) == (f"{folder}/x is not a folder; expected QNLI or the folder that contains it")
