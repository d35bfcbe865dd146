import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cloze.cli.distillation import print_starts
from cloze.errors import ConfigError, DataError
from cloze.predict import Difference, load
from cloze.tasks.rows import Source
from cloze.train.distillation.settings import AdaptSettings
from cloze.train.finetuning import domain_adaptation
from cloze.train.finetuning.domain_adaptation import adapt, choose_start
from cloze.train.finetuning.search import compare_searches
from cloze.train.finetuning.settings import FinetuneSettings
from tests.corpus.texts import WORDS
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener
from tests.train.pretraining.test_pretrain import weights

FAST = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-3, precision="fp32")
QUICK = AdaptSettings(domain_steps=4, task_steps=2, adapt_batch_size=4, adapt_max_length=16, held_out=0.2, seeds=2)


def write_domain(path: Path, documents: int = 30) -> Path:
    lines = [" ".join(WORDS[(number * 7 + shift) % len(WORDS)] for shift in range(9)) for number in range(documents)]
    path.write_text("\n\n".join(f"{line}.\n{line[::1].upper()}." for line in lines) + "\n", encoding="utf-8")
    return path


def test_every_step_is_compared_and_the_direct_model_stays_within_noise(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "a.csv", make_rows(64)), write(tmp_path / "b.csv", make_rows(16, 1)))
    domain = write_domain(tmp_path / "domain.txt")
    listener = Listener()
    run = adapt(source, [domain], base, tmp_path / "run", adaptation=QUICK, settings=FAST, progress=listener)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert list(results["starts"]) == ["direct", "domain", "task", "domain + task"]
    direct = results["starts"]["direct"]
    assert (direct["runs"], "gain" in direct) == (2, False)
    for name, start in list(results["starts"].items())[1:]:
        assert start["runs"] == 2
        assert start["gain"] == pytest.approx(start["mean"] - direct["mean"])
        tuned = (run / "tuned" / folder for folder in (name.replace(" + ", "-"), "direct"))
        gain = compare_searches(*tuned)
        assert gain is not None
        assert (start["gain"], *start["interval"]) == (gain.value, gain.low, gain.high)
        assert start["interval"][0] <= start["gain"] <= start["interval"][1]
    best = results["starts"][results["best"]]["mean"]
    assert best == max(start["mean"] for start in results["starts"].values())
    # A few steps on synthetic text give no gain beyond noise with 16 rows and two seeds.
    assert (results["kept"], results["reason"]) == ("direct", "within noise: the direct model is kept")
    assert weights(run) == weights(run / "tuned" / "direct")
    assert load(run).task is not None
    # The task text consists of the training rows only.
    text = (run / "task.txt").read_text(encoding="utf-8")
    assert text.strip().split("\n\n") == [row["text"] for row in make_rows(64)]
    # Both pre-training stages start from the right model.
    starts = {name: json.loads((run / name / "run.json").read_text("utf-8")) for name in ("domain", "domain-task")}
    assert starts["domain"]["model"] == str(base)
    assert starts["domain"]["precision"] == "fp32"
    assert starts["domain-task"]["model"] == str(run / "domain")
    again = Listener()
    adapt(source, [domain], base, run, adaptation=QUICK, settings=FAST, progress=again)
    assert any("already finished" in line for line in again.said)


def test_a_start_is_kept_for_a_gain_beyond_noise() -> None:
    means = {"direct": 0.80, "domain": 0.84, "task": 0.83, "domain + task": 0.82}
    noise = Difference(0.04, -0.01, 0.09)
    clear, small = Difference(0.03, 0.01, 0.05), Difference(0.02, 0.005, 0.035)
    kept = choose_start(means, {"domain": noise, "task": clear, "domain + task": small})
    # The chosen start does not have the best mean, but its gain is the best one beyond noise.
    assert kept == ("task", "task: gain +3.0 points, 95 % interval +1.0 to +5.0: beyond noise")
    assert choose_start(means, {"domain": noise, "task": noise, "domain + task": noise}) == (
        "direct",
        "within noise: the direct model is kept",
    )
    worse = Difference(-0.03, -0.05, -0.01)
    assert choose_start(means, {"domain": worse, "task": worse, "domain + task": worse}) == (
        "direct",
        "every other start is worse: the direct model is kept",
    )
    assert choose_start(means, {"domain": None, "task": None, "domain + task": None}) == (
        "direct",
        "the gains have no interval, because the runs lack scores per row: the direct model is kept",
    )


def test_a_gain_beyond_noise_changes_the_model(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gains = {"domain": Difference(0.1, 0.05, 0.15)}
    monkeypatch.setattr(
        domain_adaptation,
        "compare_searches",
        lambda folder, _: gains.get(folder.name, Difference(0.0, -0.1, 0.1)),
    )
    source = Source("classify", write(tmp_path / "a.csv", make_rows(64)), write(tmp_path / "b.csv", make_rows(16, 1)))
    once = replace(QUICK, seeds=1)
    run = adapt(source, [write_domain(tmp_path / "d.txt")], base, tmp_path / "run", adaptation=once, settings=FAST)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results["kept"] == "domain"
    assert results["reason"] == "domain: gain +10.0 points, 95 % interval +5.0 to +15.0: beyond noise"
    assert weights(run) == weights(run / "tuned" / "domain") != weights(run / "tuned" / "direct")


def test_the_table_of_starts_has_gains_and_why_a_model_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"mean": 0.8, "deviation": 0.01, "failed": []}
    starts = {
        "direct": common,
        "domain": {**common, "gain": 0.02, "interval": [-0.01, 0.05]},
        "task": {**common, "gain": -0.03, "interval": [-0.05, -0.01]},
    }
    kept = {"best": "domain", "kept": "direct", "reason": "within noise: the direct model is kept"}
    print_starts(tmp_path, {"metric": "accuracy", "starts": starts, **kept})
    assert capsys.readouterr().out.splitlines() == [
        "start\taccuracy\tgain\t95 % interval\t\tfailed",
        "direct\t0.8000 ± 0.0100\t\t\t\t0",
        "domain\t0.8000 ± 0.0100\t+0.0200\t-0.0100 to +0.0500\twithin noise\t0",
        "task\t0.8000 ± 0.0100\t-0.0300\t-0.0500 to -0.0100\tbeyond noise\t0",
        "within noise: the direct model is kept",
        f"{tmp_path}: the model of direct",
    ]
    # Results of finished runs of version 0.1.
    early = {"direct": {**common, "brought": 0.0}, "domain": {**common, "brought": 0.02}}
    print_starts(tmp_path, {"metric": "accuracy", "starts": early, "best": "domain"})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "direct\t0.8000 ± 0.0100\t+0.0000\t\t\t0",
        "domain\t0.8000 ± 0.0100\t+0.0200\t\t\t0",
        "the model with the best mean is kept",
        f"{tmp_path}: the model of domain",
    ]


def test_rows_to_be_scored_must_not_be_read(base: Path, tmp_path: Path) -> None:
    dev = make_rows(16, 1)
    source = Source("classify", write(tmp_path / "a.csv", make_rows(64)), write(tmp_path / "b.csv", dev))
    domain = write_domain(tmp_path / "domain.txt")
    with domain.open("a", encoding="utf-8") as file:
        file.write(f"\n{dev[3]['text']}\n")
    with pytest.raises(DataError, match=rf"1 evaluation rows occur .*{tmp_path / 'b.csv'}:5"):
        adapt(source, [domain], base, tmp_path / "run", adaptation=QUICK, settings=FAST)
    assert not (tmp_path / "run").exists()
    listener, dropping = Listener(), replace(QUICK, overlap="drop", seeds=1)
    run = adapt(source, [domain], base, tmp_path / "run", adaptation=dropping, settings=FAST, progress=listener)
    assert any(line.endswith("because they contain evaluation rows: 1") for line in listener.said)
    assert dev[3]["text"] not in (run / "domain.txt").read_text(encoding="utf-8")
    assert load(run).task is not None


def test_training_rows_that_hold_what_is_scored_are_not_read(base: Path, tmp_path: Path) -> None:
    rows, dev = make_rows(64), make_rows(16, 1)
    rows[5] = {**rows[5], "text": f"{dev[3]['text']} {dev[4]['text']}"}
    source = Source("classify", write(tmp_path / "a.csv", rows), write(tmp_path / "b.csv", dev))
    domain, listener = write_domain(tmp_path / "domain.txt"), Listener()
    once = replace(QUICK, seeds=1)
    run = adapt(source, [domain], base, tmp_path / "run", adaptation=once, settings=FAST, progress=listener)
    read = (run / "task-clean.txt").read_text(encoding="utf-8")
    assert read.strip().split("\n\n") == [row["text"] for row in rows if row is not rows[5]]
    assert "task-clean.txt: documents dropped because they contain evaluation rows: 1" in listener.said


def test_what_fine_tuning_refuses_is_refused_before_anything_is_read(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    domain = write_domain(tmp_path / "domain.txt")
    with pytest.raises(ConfigError, match="stride applies only to question answering over long contexts"):
        adapt(source, [domain], base, tmp_path / "run", adaptation=QUICK, settings=replace(FAST, stride=8))
    assert not (tmp_path / "run").exists()


def test_test_words_without_tags_must_not_be_read_either(base: Path, tmp_path: Path) -> None:
    row = "he opened the door of the old house and went in"
    folder = tmp_path / "conll"
    folder.mkdir()
    for name in ("train.txt", "dev.txt"):
        (folder / name).write_text("Paris B-LOC\nis O\n\nit O\n\n", encoding="utf-8")
    (folder / "test.txt").write_text("".join(f"{word}\n" for word in row.split()), encoding="utf-8")
    domain = write_domain(tmp_path / "domain.txt")
    with domain.open("a", encoding="utf-8") as file:
        file.write(f"\n{row}\n")
    with pytest.raises(DataError, match=rf"1 evaluation rows occur .*{folder / 'test.txt'}:1"):
        adapt(Source("conll", folder), [domain], base, tmp_path / "run", adaptation=QUICK, settings=FAST)


def test_test_rows_without_labels_must_not_be_read_either(base: Path, tmp_path: Path) -> None:
    header, row = "sentence\tlabel", "he opened the door of the old house and went in"
    (tmp_path / "SST-2").mkdir()
    for name, lines in {
        "train.tsv": [header, "good\t1", "bad\t0"],
        "dev.tsv": [header, "fine\t1"],
        "test.tsv": ["index\tsentence", f"0\t{row}"],
    }.items():
        (tmp_path / "SST-2" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    domain = write_domain(tmp_path / "domain.txt")
    with domain.open("a", encoding="utf-8") as file:
        file.write(f"\n{row.upper()}!\n")
    with pytest.raises(DataError, match=rf"1 evaluation rows occur .*{tmp_path / 'SST-2' / 'test.tsv'}:2"):
        adapt(Source("sst-2", tmp_path), [domain], base, tmp_path / "run", adaptation=QUICK, settings=FAST)


def test_text_in_json_is_read_as_text(base: Path, tmp_path: Path) -> None:
    """Rows are found in the decoded text of a JSON file, and its documents can be left out as well."""
    dev = make_rows(16, 1)
    dev[3] = {**dev[3], "text": "患者在治疗后六周内没有出现任何不良反应"}
    source = Source("classify", write(tmp_path / "a.csv", make_rows(64)), write(tmp_path / "b.csv", dev))
    documents = write_domain(tmp_path / "domain.txt").read_text(encoding="utf-8").strip().split("\n\n")
    domain = tmp_path / "domain.jsonl"
    texts = [*documents, f"据报道：{dev[3]['text']}。"]
    domain.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="ascii")
    with pytest.raises(DataError, match=rf"1 evaluation rows occur .*{tmp_path / 'b.csv'}:5"):
        adapt(source, [domain], base, tmp_path / "run", adaptation=QUICK, settings=FAST)
    dropping = replace(QUICK, overlap="drop", seeds=1)
    run = adapt(source, [domain], base, tmp_path / "run", adaptation=dropping, settings=FAST)
    assert (run / "domain.txt").read_text(encoding="utf-8").strip().split("\n\n") == documents


def test_test_rows_of_own_files_must_not_be_read_either(base: Path, tmp_path: Path) -> None:
    dev, test = make_rows(16, 1), make_rows(16, 2)
    source = Source("classify", write(tmp_path / "a.csv", make_rows(64)), write(tmp_path / "b.csv", dev))
    own = write(tmp_path / "test.csv", [{"text": row["text"]} for row in test])  # without labels
    domain = write_domain(tmp_path / "domain.txt")
    with domain.open("a", encoding="utf-8") as file:
        file.write(f"\n{test[2]['text']}\n")
    asked = partial(adapt, source, [domain], base, tmp_path / "run", settings=FAST)
    with pytest.raises(DataError, match=rf"1 evaluation rows occur .*{own}:4"):
        asked(test=own, adaptation=QUICK)
    with pytest.raises(
        ConfigError, match=r"test is .*test\.csv, but overlap='allow' .* disables the check for overlaps"
    ):
        asked(test=own, adaptation=replace(QUICK, overlap="allow"))
    assert not (tmp_path / "run").exists()
    run = asked(test=own, adaptation=replace(QUICK, overlap="drop", seeds=1))
    assert test[2]["text"] not in (run / "domain.txt").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=r"test was .* and is now None"):
        asked(adaptation=replace(QUICK, overlap="drop", seeds=1))
