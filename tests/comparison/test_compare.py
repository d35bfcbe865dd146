"""A comparison from end to end, its page, interruptions, and bad input."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloze
from cloze.comparison import compare as module
from cloze.comparison.compare import compare
from cloze.comparison.results import ComparisonFolder
from cloze.comparison.settings import BACKBONES, CompareSettings
from cloze.corpus.settings import PrepareSettings
from cloze.errors import ClozeError, ConfigError, DataError
from cloze.progress import Silent
from cloze.tasks.comparisons import Resamples
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.optimization import DivergedError
from cloze.train.pretraining.phases import LengthSchedule
from tests.train.made import Listener, interrupted_at


@pytest.fixture(scope="module")
def whole(text: Path, small: CompareSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compare([text], tmp_path_factory.mktemp("whole") / "out", settings=small)


@pytest.fixture(scope="module")
def facts(whole: Path) -> dict[str, Any]:
    return dict(json.loads((whole / "compare.json").read_text("utf-8")))


def test_every_row_is_scored_on_every_yardstick(facts: dict[str, Any]) -> None:
    assert facts["finished"]
    assert [(row["name"], row["group"], len(row["runs"])) for row in facts["rows"]] == [
        ("bert", "main", 2),
        ("gpt", "main", 2),
        ("mix=100-mask", "variant", 1),
    ]
    assert list(facts["yardsticks"]) == ["blanks", "likelihood", "pairs", "classify-rows frozen", "classify-rows full"]
    for row in facts["rows"]:
        assert list(row["scores"]) == list(facts["yardsticks"])
        for score in row["scores"].values():
            low, high = score["interval"]
            assert 0 <= low <= score["mean"] <= high <= 1
            assert score["mean"] == pytest.approx(sum(score["seeds"]) / len(score["seeds"]))
        assert len(row["phenomena"]) == 8


def test_costs_are_recorded(facts: dict[str, Any], whole: Path) -> None:
    bert, gpt = (row["runs"][0] for row in facts["rows"][:2])
    for run in (bert, gpt):
        assert run["steps"] == 20
        assert 0 < run["tokens"] <= 20 * 4 * 24
        assert run["flops"] > 0
        assert 0 < run["non_embedding_parameters"] < run["parameters"]
    assert bert["targets"] == pytest.approx(0.15 * bert["tokens"], rel=0.4)
    assert gpt["targets"] > 0.8 * gpt["tokens"]  # every token but the first of a sequence
    seconds = json.loads((whole / "seconds.json").read_text("utf-8"))
    assert all(len(seconds[row["name"]]["seeds"]) == len(row["runs"]) for row in facts["rows"])


def test_every_row_has_the_same_number_of_trials(facts: dict[str, Any]) -> None:
    for row in facts["rows"]:
        assert [trial["learning_rate"] for trial in row["trials"]] == [2e-3, 1e-3]
        assert [trial["steps"] for trial in row["trials"]] == [1, 1]  # a tenth of 20 steps together
        assert row["learning_rate"] == min(row["trials"], key=lambda trial: trial["loss"])["learning_rate"]


def test_rows_with_one_seed_are_not_ranked(facts: dict[str, Any]) -> None:
    assert {rank["row"] for rank in facts["ranks"]} == {"bert", "gpt"}
    single = [one for one in facts["differences"] if one["first"] == "mix=100-mask"]
    assert single
    assert not any(one["decided"] for one in single)
    assert "One pre-training seed, not ranked: mix=100-mask" in " ".join(facts["conclusions"]["limits"])


def test_page_needs_nothing_from_outside(whole: Path) -> None:
    page = (whole / "compare.html").read_text("utf-8")
    assert not re.search(r"<script|<link|<img|@import|url\(|style=|onload", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1].startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    for words in ("What the results say", "one seed, not decided", "Curves", "Cost", "lm loss", "mlm loss"):
        assert words in page


@pytest.fixture(scope="module")
def shorter(
    text: Path, small: CompareSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CompareSettings, Path]:
    """A comparison of two rows with one seed."""
    settings = replace(small, backbones="bert:1,gpt:1", vary=None)
    return settings, compare([text], tmp_path_factory.mktemp("shorter") / "out", settings=settings)


@pytest.mark.parametrize("stage", ["training", "pairs", "finetuning"])
def test_a_killed_comparison_ends_in_the_same_results(
    stage: str,
    text: Path,
    shorter: tuple[CompareSettings, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, (settings, whole) = tmp_path / "out", shorter
    if stage == "training":
        with interrupted_at(7, LengthSchedule), pytest.raises(BaseException, match="stopped"):
            compare([text], out, settings=settings)
    else:
        name = "score_pairs" if stage == "pairs" else "finetune_rows"
        original: Callable[..., Any] = getattr(module, name)
        calls = []

        def killed(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KeyboardInterrupt):
                compare([text], out, settings=settings)
    assert not (out / "compare.json").is_file() or not json.loads((out / "compare.json").read_text())["finished"]
    compare([text], out, settings=settings)
    assert (out / "compare.json").read_bytes() == (whole / "compare.json").read_bytes()


def test_a_finished_comparison_is_not_repeated(text: Path, small: CompareSettings, whole: Path) -> None:
    listener = Listener()
    before = (whole / "compare.json").read_bytes()
    assert cloze.compare([text], whole, settings=small, progress=listener) == whole
    assert listener.said == [f"{whole}: already finished; use fresh=True (--fresh) to start over"]
    assert (whole / "compare.json").read_bytes() == before
    with pytest.raises(ConfigError, match="settings differ from those this run was started with: steps was 20"):
        compare([text], whole, settings=replace(small, steps=30))


def test_documents_in_memory_and_a_budget_of_operations(text: Path, tmp_path: Path) -> None:
    documents = [part for part in text.read_text("utf-8").split("\n\n") if part.strip()]
    settings = CompareSettings(
        backbones="bert:1", tasks="none", flops=2e9, trials=1, preset="tiny", max_length=24, batch_size=4,
        vocabulary=150, held_out=0.4, blanks=10, pairs=16, precision="fp32",
    )  # fmt: skip
    out = compare({"text": documents}, tmp_path / "out", settings=settings)
    (row,) = json.loads((out / "compare.json").read_text("utf-8"))["rows"]
    assert 0.8 * 2e9 < row["runs"][0]["flops"] <= 2e9
    with pytest.raises(ConfigError, match=r"flops is 1000, enough for 0 steps of bert.*use at least"):
        compare([text], tmp_path / "little", settings=replace(settings, flops=1000))


def test_a_diverged_row_is_reported(
    text: Path, small: CompareSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(small, backbones="bert:1", vary=None, tasks="none", trials=1)

    def diverged(*arguments: Any, **options: Any) -> Any:
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(module, "pretrain", diverged)
    facts = json.loads((compare([text], tmp_path / "out", settings=settings) / "compare.json").read_text("utf-8"))
    assert facts["rows"][0]["diverged"] == 1
    assert facts["rows"][0]["scores"] == {}
    assert "Diverged in at least one seed, which has no scores: bert." in facts["conclusions"]["limits"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hours": 1.0}, "the budget is given by hours and steps; leave out all but one"),
        ({"steps": 10}, "steps is 10, but 2 learning-rate trials in a tenth of the budget need 20"),
        ({"backbones": "bert,gtp"}, "backbones: unknown architecture 'gtp'; did you mean 'gpt'"),
        ({"backbones": "bert:0"}, "backbones: 'bert:0' is not valid; expected NAME or NAME:SEEDS"),
        ({"backbones": "bert,bert"}, "backbones and vary name bert twice"),
        ({"backbones": "bert,,gpt"}, "backbones is 'bert,,gpt'; expected names separated by commas"),
        ({"vary": "masks,colour"}, "vary: unknown ablation 'colour'"),
        ({"vary": "mix:none"}, "vary: 'mix:none' is not valid; expected NAME or NAME:SEEDS"),
        ({"tasks": "author"}, r"tasks: 'author' is not among the bundled tasks \(authors, order\); for other tasks"),
        ({"tasks": "mrpc="}, "tasks: 'mrpc=' is not valid; expected TASK=FOLDER, or KIND=TRAIN:DEV"),
        ({"tasks": "authors,authors"}, "tasks: authors is named twice"),
        ({"trials": 6}, "trials is 6; expected 1 to 5"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"pairs": 3}, "pairs is 3; expected at least 16"),
        ({"held_out": 1.5}, "held_out is 1.5; expected a fraction between 0 and 1"),
        ({"flops": -1.0, "steps": None}, "flops is -1.0; expected a number of operations"),
        ({"preset": "huge"}, "unknown preset 'huge'"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str, small: CompareSettings) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(small, **change)


def test_bad_input_is_refused_before_any_work(
    text: Path, small: CompareSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"missing\.tsv"):
        compare([text], out, settings=replace(small, tasks="classify=missing.tsv:missing.tsv"))
    with pytest.raises(ConfigError, match="unknown task 'mprc'; did you mean 'mrpc'"):
        compare([text], out, settings=replace(small, tasks="mprc=folder"))
    with pytest.raises(ClozeError, match=r"nowhere\.txt"):
        compare([tmp_path / "nowhere.txt"], out, settings=small)
    single = tmp_path / "single.txt"
    single.write_text("A text of one document.\nIt has two lines.\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"1 documents, of which [01] were drawn for the test; give more documents"):
        compare([single], out, settings=small)
    assert compare([text], out, settings=replace(small, backbones="bert:1", vary=None, tasks="none"), fresh=True) == out


def test_too_little_development_text(
    text: Path, small: CompareSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(small, backbones="bert:1", vary=None, tasks="none")
    monkeypatch.setattr(CompareSettings, "preparation", lambda _: PrepareSettings(held_out=0))
    with pytest.raises(DataError, match="too little text is held out to choose a learning rate"):
        compare([text], tmp_path / "out", settings=settings, progress=Silent())


def test_folder_names_are_plain(small: CompareSettings, tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path, replace(small, backbones="bert+nsp,bert"), {})
    names = [folder.model(row).name for row in folder.settings.rows()]
    assert names == ["bert-nsp", "bert", "mix-100-mask"]
    assert Resamples.read(folder.reference) is None


def test_a_yardstick_that_does_not_apply_is_reported(
    text: Path, small: CompareSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(small, backbones="bert:1", vary=None, trials=1)
    original = finetune_rows

    def refused(*arguments: Any, **options: Any) -> Any:
        if options["settings"].frozen:
            raise ConfigError("frozen states need layers")
        return original(*arguments, **options)

    monkeypatch.setattr(module, "finetune_rows", refused)
    out = compare([text], tmp_path / "out", settings=settings)
    facts = json.loads((out / "compare.json").read_text("utf-8"))
    assert facts["rows"][0]["refused"] == {"classify-rows frozen": "frozen states need layers"}
    assert "classify-rows frozen" not in facts["rows"][0]["scores"]
    assert "classify-rows full" in facts["rows"][0]["scores"]
    limits = " ".join(facts["conclusions"]["limits"])
    assert "bert has no score for classify-rows, frozen features: frozen states need layers." in limits
    assert "does not apply" in (out / "compare.html").read_text("utf-8")


def test_static_vectors_have_only_tasks(text: Path, small: CompareSettings, tmp_path: Path) -> None:
    if "glove" not in BACKBONES:
        pytest.skip("there are no static vectors")
    out = compare([text], tmp_path / "out", settings=replace(small, backbones="glove:1", vary=None))
    (row,) = json.loads((out / "compare.json").read_text("utf-8"))["rows"]
    assert list(row["scores"]) == ["classify-rows frozen", "classify-rows full"]
    assert set(row["refused"]) == {"blanks", "pairs"}
    assert (row["learning_rate"], row["trials"]) == (0.05, [])
    assert (row["runs"][0]["flops"], row["runs"][0]["non_embedding_parameters"]) == (None, 0)
    assert "not counted" in (out / "compare.html").read_text("utf-8")
    counted = replace(small, backbones="glove:1", vary=None, steps=None, flops=1e9)
    with pytest.raises(ConfigError, match="flops does not apply to glove"):
        compare([text], tmp_path / "flops", settings=counted)
