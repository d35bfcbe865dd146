"""SIGHAN's detection and correction metrics, and files with misspellings."""

import lzma
from pathlib import Path

import pytest
from sklearn.metrics import precision_recall_fscore_support

from cloze.errors import DataError
from cloze.tasks.correction.examples import Corrections, read_corrections
from cloze.tasks.correction.kind import CorrectionSettings
from cloze.tasks.correction.metrics import applied, choose_threshold, find_edits, score_corrections

# One of two correct sentences is changed; both misspelled ones are detected, and one is corrected.
SOURCES = ["他们那么好玩", "生活作息很不建康康", "在这里有很多人", "我仿别很高兴"]
TARGETS = ["他们那么好玩", "生活作息很不健康康", "在这里有很多人", "我仿佛很高兴"]
TOLD = ["他们那么好完", "生活作息很不键康康", "在这里有很多人", "我仿佛很高兴"]


def test_sighans_figures_by_hand() -> None:
    figures = score_corrections(SOURCES, TARGETS, TOLD)
    assert figures["false_alarms"] == 0.5
    assert figures["detection_precision"] == pytest.approx(2 / 3)
    assert figures["detection_recall"] == 1
    assert figures["detection_f1"] == pytest.approx(0.8)
    assert (figures["correction_precision"], figures["correction_recall"], figures["correction_f1"]) == (0.5, 0.5, 0.5)
    # The denominator is all flagged sentences, including the wrongly corrected one.
    assert figures["flagged_correction_precision"] == pytest.approx(1 / 3)
    assert figures["flagged_detection_precision"] == pytest.approx(2 / 3)
    assert next(iter(figures)) == "correction_f1"


def test_characters_against_scikit_learn() -> None:
    figures = score_corrections(SOURCES, TARGETS, TOLD)
    wanted = [
        old != new for one, other in zip(SOURCES, TARGETS, strict=True) for old, new in zip(one, other, strict=True)
    ]
    made = [old != new for one, other in zip(SOURCES, TOLD, strict=True) for old, new in zip(one, other, strict=True)]
    precision, recall, f1, _ = precision_recall_fscore_support(wanted, made, average="binary")
    assert figures["character_detection_precision"] == pytest.approx(precision)
    assert figures["character_detection_recall"] == pytest.approx(recall)
    assert figures["character_detection_f1"] == pytest.approx(f1)
    assert figures["character_correction_precision"] == pytest.approx(1 / 3)
    assert figures["character_correction_recall"] == pytest.approx(1 / 2)


def test_some_of_the_mistakes_are_not_the_sentence() -> None:
    figures = score_corrections(["因该在见"], ["应该再见"], ["应该在见"])
    assert figures["detection_recall"] == figures["correction_recall"] == 0
    assert figures["character_correction_recall"] == 0.5
    assert figures["character_correction_precision"] == 1


def test_nothing_done_scores_nothing() -> None:
    figures = score_corrections(["a b"], ["a c"], ["a b"])
    assert set(figures.values()) == {0.0}
    with pytest.raises(DataError, match=r"^no rows to score; expected at least one row with a"):
        score_corrections([], [], [])


@pytest.mark.parametrize(
    ("source", "target", "edits"),
    [
        ("teh cat", "the cat", {(0, "teh", "the")}),
        ("I recieve teh mail.", "I receive the mail.", {(2, "recieve", "receive"), (10, "teh", "the")}),
        ("我喜欢T恤杉", "我喜欢T恤衫", {(5, "杉", "衫")}),
        ("alot of it", "a lot of it", {(0, "alot", "a lot")}),
        ("same", "same", set()),
    ],
)
def test_edits(source: str, target: str, edits: set[tuple[int, str, str]]) -> None:
    assert find_edits(source, target) == edits


def test_tables_by_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"source": "teh cat", "target": "the cat", "errors": [["teh", "the", 0]]}\n', encoding="utf-8")
    assert read_corrections(path) == Corrections(["teh cat"], ["the cat"], [f"{path}:1"])
    with pytest.raises(DataError, match=r"'wrong'; it has: source, target, errors"):
        read_corrections(path, "wrong")


def test_sighans_folder(tmp_path: Path) -> None:
    (tmp_path / "TestInput.txt").write_text("(pid=A1)\t我跟朋唷去玩\n(pid=A2)\t你好！\n", encoding="utf-8")
    (tmp_path / "TestTruth.txt").write_text("A1, 4, 友\nA2, 0\n", encoding="utf-8")
    found = read_corrections(tmp_path)
    assert found.sources == ["我跟朋唷去玩", "你好！"]
    assert found.targets == ["我跟朋友去玩", "你好！"]
    assert found.places[1] == f"{tmp_path / 'TestInput.txt'}:2"


def test_sighans_training_files(tmp_path: Path) -> None:
    sentences = "(sighan13-id=0)\t我跟朋唷去玩\n(sighan15-id=0)\t你号！\n"
    (tmp_path / "TrainingInputAll.txt.xz").write_bytes(lzma.compress(sentences.encode()))
    (tmp_path / "TrainingTruthAll.txt").write_text("(sighan13-id=0), 4, 友\n(sighan15-id=0), 2, 好\n", encoding="utf-8")
    found = read_corrections(tmp_path, training=True)
    assert found.targets == ["我跟朋友去玩", "你好！"]
    assert found.select([1]).documents() == [["你好！"]]
    with pytest.raises(DataError, match=r"has no TestInput.txt and TestTruth.txt; give a folder with SIGHAN's"):
        read_corrections(tmp_path)
    # In a folder without training files, the test files are read for training.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "TestInput.txt").write_text("(pid=A1)\t你好\n", encoding="utf-8")
    (tmp_path / "other" / "TestTruth.txt").write_text("A1, 0\n", encoding="utf-8")
    assert read_corrections(tmp_path / "other", training=True).right == 1


@pytest.mark.parametrize(
    ("before", "threshold", "expected"),
    [
        (CorrectionSettings(), None, ("hidden", 0.9)),
        (CorrectionSettings(), 0.6, ("seen", 0.6)),
        (CorrectionSettings(reading="hidden"), 0.6, ("hidden", 0.9)),
        (CorrectionSettings(threshold=0.0), 0.6, ("seen", 0.0)),
    ],
)
def test_what_is_left_out_suits_the_model(
    before: CorrectionSettings, threshold: float | None, expected: tuple[str, float]
) -> None:
    completed = before.completed(threshold)
    assert (completed.reading, completed.threshold) == expected


def test_threshold_with_few_false_alarms() -> None:
    sources, targets = ["ab"] * 40, ["ac"] * 20 + ["ab"] * 20
    changes = [[(1, "b", "c", 0.95)]] * 20 + [[(1, "b", "c", 0.8)]] * 2 + [[]] * 18
    threshold = choose_threshold(sources, targets, changes)
    assert 0.8 < threshold <= 0.95
    assert applied(sources, changes, threshold) == targets


@pytest.mark.parametrize(
    ("sentences", "truth", "message"),
    [
        ("(pid=A1)\t你好", "A2, 0", "TestTruth.txt: has no entry for 'A1' of TestInput.txt; download it again$"),
        ("你好", "A1, 0", r"TestInput.txt:1: '你好'; expected \(pid=NAME\), a tab, and a sentence$"),
        ("(pid=A1)\t你好", "A1, x", r"TestTruth.txt:1: 'A1, x'; expected NAME, PLACE, CHARACTER, ... or NAME, 0$"),
        (
            "(pid=A1)\t你好",
            "A1, 3, 号",
            "TestInput.txt:1: a correction is for character 3 of 2; the files do not match$",
        ),
    ],
)
def test_folders_that_are_wrong(sentences: str, truth: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "TestInput.txt").write_text(sentences, encoding="utf-8")
    (tmp_path / "TestTruth.txt").write_text(truth, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_corrections(tmp_path)
