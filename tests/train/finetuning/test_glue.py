import json
import shutil
from pathlib import Path

import pytest

from cloze.cli.finetuning import print_search
from cloze.errors import ConfigError, DataError, RequestError
from cloze.predict import evaluate, load
from cloze.predict.evaluation import answer_test_rows, write_submission
from cloze.tasks.classification.published import GLUE
from cloze.tasks.comparisons import average_interval
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.glue import finetune_glue
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.run import Run
from tests.tasks.classification.test_published import MNLI_CELLS, MNLI_HEADER

FAST = FinetuneSettings(epochs=1, batch_size=4, max_length=16, learning_rate=1e-3)


def lines(count: int, *cells: str) -> str:
    return "".join("\t".join(cell.format(number) for cell in cells) + "\n" for number in range(count))


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    files = {
        "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n"
        + lines(6, "{0}", "the river {0}", "a garden", "entailment")
        + lines(6, "{0}", "the winter {0}", "a garden", "not_entailment"),
        "RTE/test.tsv": "index\tsentence1\tsentence2\n" + lines(3, "{0}", "a river", "a {0}"),
        "STS-B/train.tsv": "sentence1\tsentence2\tscore\n" + lines(8, "one {0}", "two", "{0}.5"),
        "STS-B/test.tsv": "sentence1\tsentence2\n" + lines(2, "one", "two {0}"),
        "MNLI/test_matched.tsv": f"{MNLI_HEADER}label2\n{MNLI_CELLS}neutral\n",
        "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n",
    }
    for name, content in files.items():
        path = tmp_path / "glue" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for task in ("RTE", "STS-B"):
        text = (tmp_path / "glue" / task / "train.tsv").read_text(encoding="utf-8")
        (tmp_path / "glue" / task / "dev.tsv").write_text(text, encoding="utf-8")
    return tmp_path / "glue"


def test_every_task_that_is_there_is_tuned_scored_and_answered(base: Path, glue: Path, tmp_path: Path) -> None:
    out = finetune_glue(
        Source("glue", glue), base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2)
    )
    results = Run(out).results()
    assert list(results["tasks"]) == ["sts-b", "rte"]
    assert results["average"] == pytest.approx(sum(one["mean"] for one in results["tasks"].values()) / 2)
    means, ends = ([one[name] for one in results["tasks"].values()] for name in ("mean", "interval"))
    assert results["average_interval"] == average_interval(means, ends)
    assert {one["interval_of"] for one in results["tasks"].values()} == {"rows and seeds"}
    assert "wnli" in results["absent"]
    answers = (out / "submission" / "RTE.tsv").read_text(encoding="utf-8").splitlines()
    assert answers[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in answers[1:]] == ["0", "1", "2"]
    assert {line.split("\t")[1] for line in answers[1:]} <= {"entailment", "not_entailment"}
    numbers = (out / "submission" / "STS-B.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert all(0 <= float(line.split("\t")[1]) <= 5 for line in numbers)


def test_answers_are_those_of_the_model_and_splits_have_their_names(base: Path, glue: Path, tmp_path: Path) -> None:
    run = run_finetuning(Source("rte", glue), base, tmp_path / "run", settings=FAST)
    model = load(run)
    (path,) = write_submission(model, GLUE["rte"], glue, tmp_path / "out")
    predictions = [line.split("\t")[1] for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    assert predictions == [one.label for one in model.classify(["a river"] * 3, ["a 0", "a 1", "a 2"])]
    (matched,) = write_submission(model, GLUE["mnli"], glue, tmp_path / "out")
    assert matched.name == "MNLI-m.tsv"
    (glue / "diagnostic").mkdir()
    rows = "index\tsentence1\tsentence2\n0\ta river\ta 0\n1\ta river\ta 1\n"
    (glue / "diagnostic" / "diagnostic.tsv").write_text(rows, encoding="utf-8")
    for folder in (glue, glue / "MNLI"):
        matched, diagnostic = write_submission(model, GLUE["mnli"], folder, tmp_path / "out")
        assert diagnostic.name == "AX.tsv"
        assert (
            diagnostic.read_text(encoding="utf-8") == f"index\tprediction\n0\t{predictions[0]}\n1\t{predictions[1]}\n"
        )


def test_a_tuned_model_answers_the_test_rows_of_its_task(base: Path, glue: Path, tmp_path: Path) -> None:
    run = run_finetuning(Source("rte", glue), base, tmp_path / "run", settings=FAST)
    (path,) = answer_test_rows(run, Source("RTE", glue), tmp_path / "out")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    # A row without a text gets a prediction too, because the server expects one per row.
    test = glue / "RTE" / "test.tsv"
    test.write_text("index\tsentence1\tsentence2\n0\ta river\t\n1\ta river\tb\n", encoding="utf-8")
    (path,) = answer_test_rows(run, Source("rte", glue), tmp_path / "out")
    assert [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()] == ["index", "0", "1"]
    with pytest.raises(RequestError, match="the labels of mrpc are 0, 1; this model has entailment, not_entailment"):
        answer_test_rows(run, Source("mrpc", glue), tmp_path / "none")
    test.unlink()
    with pytest.raises(DataError, match="no test file of rte found"):
        answer_test_rows(run, Source("rte", glue), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(
        RequestError, match="sts-b needs a model fine-tuned to regress; this one is fine-tuned to classify"
    ):
        answer_test_rows(run, Source("sts-b", glue), tmp_path / "none")


def test_what_cannot_be_is_refused(base: Path, glue: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no GLUE task with train and dev files found"):
        finetune_glue(Source("glue", glue / "RTE"), base, tmp_path / "run")
    with pytest.raises(ConfigError, match="every task of GLUE has its own dev rows; leave out --dev"):
        finetune_glue(Source("glue", glue, glue / "RTE" / "dev.tsv"), base, tmp_path / "run")
    with pytest.raises(ConfigError, match="calibrate applies only to classification; the task here is regress"):
        finetune_glue(Source("glue", glue), base, tmp_path / "run", settings=FinetuneSettings(calibrate=True))
    assert not (tmp_path / "run").exists(), "rejected before other tasks are trained"
    with pytest.raises(ConfigError, match="GLUE has dev sets; leave out --folds"):
        finetune_glue(Source("glue", glue), base, tmp_path / "run", search_settings=SearchSettings(folds=2))


@pytest.fixture
def more_glue(glue: Path) -> Path:
    """MNLI with both of its dev sets, whose labels differ, and WNLI."""
    row = "0\t1\t1n\tgovernment\t( a )\t( b )\t(R a)\t(R b)\tthe river\ta garden\tneutral\t"
    texts = {
        "MNLI/train.tsv": f"{MNLI_HEADER}gold_label\n"
        + "".join(lines(4, f"{row}{label}") for label in ("neutral", "entailment", "contradiction")),
        "MNLI/dev_matched.tsv": f"{MNLI_HEADER}label2\tgold_label\n" + lines(3, f"{row}neutral\tneutral"),
        "MNLI/dev_mismatched.tsv": f"{MNLI_HEADER}label2\tgold_label\n" + lines(5, f"{row}neutral\tentailment"),
        "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n" + lines(8, "{0}", "a river {0}", "a garden", "1"),
    }
    for name, content in texts.items():
        (glue / name).write_text(content, encoding="utf-8")
    return glue


def test_mismatched_rows_count_for_themselves_and_wnli_does_not_count(
    base: Path, more_glue: Path, tmp_path: Path
) -> None:
    out = finetune_glue(
        Source("glue", more_glue), base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=1)
    )
    results = Run(out).results()
    tasks = results["tasks"]
    assert list(tasks) == ["sts-b", "mnli", "rte", "wnli"]
    predictions = evaluate(load(out / "mnli"), Source("mnli", more_glue), split="dev_mismatched")
    assert tasks["mnli"]["mismatched"] == predictions.metrics["accuracy"]
    assert tasks["mnli"]["mismatched_interval"] == predictions.intervals["accuracy"]
    # All rows have the same text, and the two dev sets expect different labels.
    assert {tasks["mnli"]["mean"], tasks["mnli"]["mismatched"]} <= {0.0, 1.0}
    assert tasks["mnli"]["mean"] + tasks["mnli"]["mismatched"] <= 1.0
    counted = [tasks[name]["mean"] for name in ("sts-b", "mnli", "rte")] + [tasks["mnli"]["mismatched"]]
    assert results["average"] == pytest.approx(sum(counted) / 4)
    assert "mismatched" not in tasks["rte"]


def test_wnli_alone_is_its_own_average(base: Path, more_glue: Path, tmp_path: Path) -> None:
    for name in ("RTE", "STS-B", "MNLI"):
        shutil.rmtree(more_glue / name)
    out = finetune_glue(
        Source("glue", more_glue), base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=1)
    )
    results = Run(out).results()
    assert list(results["tasks"]) == ["wnli"]
    assert results["average"] == results["tasks"]["wnli"]["mean"]


def test_the_table_of_a_suite_says_whose_scores_these_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = {
        "mnli": {
            "metric": "accuracy",
            "mean": 0.5,
            "deviation": 0.01,
            "interval": [0.4, 0.6],
            "mismatched": 0.75,
            "mismatched_interval": [0.7, 0.8],
        },
        "wnli": {"metric": "accuracy", "mean": 0.25, "deviation": 0.0},
    }
    results = {"average": 0.625, "average_interval": [0.5, 0.75], "tasks": tasks, "absent": []}
    (tmp_path / "eval_results.json").write_text(json.dumps(results), encoding="utf-8")
    print_search(tmp_path, json=False)
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["task", "metric", "mean", "deviation", "95 % interval"],
        ["mnli", "accuracy", "0.5000", "0.0100", "0.4000 to 0.6000"],
        ["mnli, mismatched", "accuracy", "0.7500", "best run alone", "0.7000 to 0.8000"],
        ["wnli", "accuracy", "0.2500", "0.0000", ""],  # of a finished run of version 0.1
        ["average", "", "0.6250", "", "0.5000 to 0.7500"],
    ]
    print_search(tmp_path, json=True)
    assert json.loads(capsys.readouterr().out) == results
