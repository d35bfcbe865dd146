"""Synthetic files in the format of the published CLUE tasks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.errors import ConfigError, DataError
from cloze.predict import evaluate
from cloze.tasks.answering.examples import Questions
from cloze.tasks.choice.kind import Choices
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.clue import CLUE
from cloze.tasks.registry import find_task, read_examples, read_task
from cloze.tasks.rows import Source
from cloze.tasks.tagging.kind import TaggedSentences
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.glue import finetune_clue
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.run import Run
from tests.model.made import model_folder, saved
from tests.train.made import Listener

FAST = FinetuneSettings(epochs=1, batch_size=4, max_length=32, learning_rate=1e-3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(), tmp_path_factory.mktemp("base") / "model")


def write(path: Path, *rows: Any) -> Path:
    """Write one JSON value per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_texts(task: str, folder: Path, *rows: Any, home: str = "") -> LabelledTexts:
    for split in ("train", "dev"):
        write(folder / home / f"{split}.json", *rows)
    train = read_task(Source(task, folder)).train
    assert isinstance(train, LabelledTexts)
    return train


def test_news_and_apps(tmp_path: Path) -> None:
    news = {"label": "108", "label_desc": "news_edu", "sentence": "上课时学生手机响个不停", "keywords": ""}
    found = read_texts("tnews", tmp_path, news, home="tnews_public")
    assert (found.texts, found.pairs, found.targets) == (["上课时学生手机响个不停"], None, [7])
    assert find_task("TNEWS").read(Source("tnews", tmp_path), "dev", None).labels.names[7] == "108"  # type: ignore[union-attr]
    app = {"label": "110", "label_des": "社区超市", "sentence": "朴朴快送超市"}
    found = read_texts("iflytek", tmp_path / "apps", app)
    assert (found.texts, found.targets) == (["朴朴快送超市"], [110])
    write(tmp_path / "apps" / "test.json", {"id": 0, "sentence": "应用"})
    assert find_task("iflytek").read_other_splits(Source("iflytek", tmp_path / "apps"))[0][1] == ["应用"]
    with pytest.raises(DataError, match="iflytek: the labels of its test rows are not published"):
        read_examples(Source("iflytek", tmp_path / "apps"), None, "test")


NLI: dict[str, Any] = {"level": "medium", "sentence1": "身上裹一件工厂发的棉大衣", "sentence2": "身上至少一件衣服"}
NLI |= {"label": "entailment", "label0": "entailment", "label1": None, "genre": "lit", "prem_id": "0", "id": 0}


@pytest.mark.parametrize("task", ["ocnli", "cmnli"])
def test_rows_without_an_agreed_label_are_skipped_and_counted(task: str, tmp_path: Path, base: Path) -> None:
    rows = [NLI | {"label": label} for label in ("entailment", "-", "neutral", "contradiction", "-", "", -1, None)]
    train = read_texts(task, tmp_path, *rows)
    assert (train.targets, train.unlabelled, train.skipped) == ([1, 2, 0], 5, 0)
    notes = read_task(Source(task, tmp_path)).notes
    assert notes == tuple(
        f"5 {split} rows that are marked as having no label were skipped" for split in ("training", "dev")
    )
    if task == "ocnli":
        (tmp_path / "train.json").rename(tmp_path / "train.50k.json")
        listener = Listener()
        run = run_finetuning(Source(task, tmp_path), base, tmp_path / "run", settings=FAST, progress=listener)
        assert set(notes) <= set(listener.said)
        assert evaluate(run, Source(task, tmp_path)).results()["unlabelled"] == 5
    write(tmp_path / "dev.json", NLI | {"label": "-"})
    with pytest.raises(DataError, match=r"dev.json: no row has a label \(1 are marked as having none\)"):
        read_task(Source(task, tmp_path))


def test_keywords_and_pronouns(tmp_path: Path) -> None:
    abstract = {"id": 1, "abst": "为解决传统均匀FFT波束形成算法", "keyword": ["水声学", "FFT"], "label": "1"}
    found = read_texts("csl", tmp_path / "csl", abstract)
    assert (found.texts, found.pairs, found.targets) == (["水声学 FFT"], [abstract["abst"]], [1])
    pronoun = {"span2_index": 6, "span1_index": 0, "span1_text": "小明", "span2_text": "他"}
    row = {"target": pronoun, "idx": 0, "label": "true", "text": "小明的妈妈是他的"}
    found = read_texts("wsc", tmp_path, row, home="cluewsc2020_public")
    assert (found.texts, found.targets) == (["_小明_的妈妈是[他]的"], [1])
    beside = row | {"target": pronoun | {"span1_index": 6, "span1_text": "他", "span2_index": 7, "span2_text": "的"}}
    assert read_texts("wsc", tmp_path / "beside", beside | {"label": "false"}).texts == ["小明的妈妈是_他_[的]"]
    with pytest.raises(DataError, match=r"train.json:1: span2 is '她' at 6, but 'text' differs there"):
        read_texts("wsc", tmp_path / "bad", row | {"target": pronoun | {"span2_text": "她"}})
    with pytest.raises(DataError, match=r"train.json:1: 'keyword' is 'FFT'; expected a list of texts"):
        read_texts("csl", tmp_path / "bad_csl", abstract | {"keyword": "FFT"})


IDIOMS = ["百废待兴", "明眸善睐", "未雨绸缪"]


def make_chid(folder: Path) -> None:
    row = {"content": ["在" * 80 + "#idiom000378#" + "后#idiom000379#完"], "candidates": IDIOMS}
    for split in ("train", "dev"):
        write(folder / f"{split}.json", row)
        write(folder / f"{split}_answer.json", {"#idiom000378#": 2, "#idiom000379#": 0})


def test_idioms(tmp_path: Path) -> None:
    make_chid(tmp_path / "chid_public")
    train = read_task(Source("chid", tmp_path)).train
    assert isinstance(train, Choices)
    assert [row.target for row in train.rows] == [2, 0]
    assert train.rows[0].prompt == "在" * 55 + "____后……完"
    assert train.rows[1].prompt.endswith("在……后____完")
    assert train.rows[0].options == tuple(IDIOMS)
    assert train.rows[0].place.endswith("train.json:1:#idiom000378#")
    home = tmp_path / "chid_public"
    write(home / "test.json", {"content": ["#idiom000001#了"], "candidates": IDIOMS})
    assert find_task("chid").read_other_splits(Source("chid", tmp_path))[0][1] == ["____了", *IDIOMS]
    with pytest.raises(DataError, match="chid: the labels of its test rows are not published"):
        read_examples(Source("chid", tmp_path), None, "test")
    write(home / "dev_answer.json", {"#idiom000378#": 3, "#idiom000379#": 0})
    with pytest.raises(DataError, match=r"dev.json:1:#idiom000378#: the answer is 3; expected a number from 0 to 2"):
        read_task(Source("chid", tmp_path))
    assert len(read_task(Source("chid", tmp_path, on_bad_row="skip")).dev) == 1
    (home / "dev_answer.json").unlink()
    with pytest.raises(DataError, match=r"has no dev_answer.json, the answers to dev.json; expected ChID as CLUE"):
        read_task(Source("chid", tmp_path))


def make_c3(folder: Path, prefix: str = "") -> None:
    def entry(question: str) -> list[Any]:
        return [
            ["男：足球比赛", "女：还有十分钟"],
            [{"question": question, "choice": ["排球", "足球"], "answer": "足球"}],
            "1",
        ]

    for split in ("train", "dev"):
        for part in "md":
            write(folder / f"{prefix}{part}-{split}.json", [entry(f"{part}谈什么？")])


@pytest.mark.parametrize("prefix", ["", "c3-"])
def test_multiple_choice(prefix: str, tmp_path: Path) -> None:
    make_c3(tmp_path / "c3", prefix)
    train = read_task(Source("c3", tmp_path)).train
    assert isinstance(train, Choices)
    assert [row.options for row in train.rows] == [(f"{part}谈什么？排球", f"{part}谈什么？足球") for part in "md"]
    assert {row.prompt for row in train.rows} == {"男：足球比赛\n女：还有十分钟"}
    assert [row.target for row in train.rows] == [1, 1]
    write(
        tmp_path / "c3" / f"{prefix}m-dev.json",
        [[["a"], [{"question": "b", "choice": ["c", "d"], "answer": "e"}], "2"]],
    )
    with pytest.raises(DataError, match=r"m-dev.json:1: question 1: the answer is 'e', which is none of the choices"):
        read_task(Source("c3", tmp_path))


def make_cluener(folder: Path) -> None:
    row = {
        "text": "浙商 叶老桂在A行",
        "label": {"name": {"叶老桂": [[3, 5]]}, "company": {"浙商": [[0, 1]], "A行": [[7, 8]]}},
    }
    for split in ("train", "dev"):
        write(folder / f"{split}.json", row)


def test_entities(tmp_path: Path) -> None:
    make_cluener(tmp_path)
    data = read_task(Source("cluener", tmp_path))
    assert isinstance(data.train, TaggedSentences)
    assert data.train.words == [list("浙商叶老桂在A行")]
    assert data.labels is not None
    tags = [data.labels.names[tag] for tag in data.train.targets[0]]
    assert tags == ["B-company", "I-company", "B-name", "I-name", "I-name", "O", "B-company", "I-company"]
    assert data.train.by_characters
    write(tmp_path / "test.json", {"id": 0, "text": "四川敦煌学"})
    assert find_task("cluener").read_other_splits(Source("cluener", tmp_path))[0][1] == ["四川敦煌学"]
    write(tmp_path / "dev.json", {"text": "四川敦煌学", "label": {"name": {"四川": [[1, 2]]}}})
    with pytest.raises(
        DataError, match=r"dev.json:1: name '四川' is at \[1, 2\], but the text there differs; expected its"
    ):
        read_task(Source("cluener", tmp_path))


def test_overlapping_entities_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    label = {"name": {"四川": [[0, 1]]}, "company": {"四川敦煌": [[0, 3]]}}
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.json", {"text": "四川敦煌学", "label": label})
    data = read_task(Source("cluener", tmp_path))
    assert data.labels is not None
    assert data.labels.names == ("B-company", "I-company", "O")
    assert f"{tmp_path / 'train.json'}: 1 entities overlap a longer one and are left out" in caplog.messages


@pytest.mark.parametrize(
    ("task", "home", "train", "dev"),
    [
        ("drcd", "drcd", "DRCD_training.json", "DRCD_dev.json"),
        ("drcd", "drcd_public", "train.json", "dev.json"),
        ("cmrc", "cmrc2018_public", "train.json", "dev.json"),
    ],
)
def test_answers(task: str, home: str, train: str, dev: str, tmp_path: Path) -> None:
    qas = [{"id": "1001-10-1", "question": "何時起跑？", "answers": [{"id": "1", "text": "1855年", "answer_start": 2}]}]
    article = {"title": "梵語", "id": "1147", "paragraphs": [{"context": "於是1855年出現", "id": "1147-5", "qas": qas}]}
    for name in (train, dev):
        write(tmp_path / home / name, {"version": "1.3", "data": [article]})
    data = read_task(Source(task, tmp_path))
    assert isinstance(data.train, Questions)
    assert (data.train.rows[0].answers, data.train.rows[0].span) == (("1855年",), (2, 7))
    assert data.metrics == ("f1", "em", "average")


def test_all_of_it(base: Path, tmp_path: Path) -> None:
    clue = tmp_path / "clue"
    make_chid(clue / "chid_public")
    make_cluener(clue / "cluener")
    for split in ("train", "dev"):
        write(
            clue / "csl" / f"{split}.json",
            {"abst": "a", "keyword": ["b"], "label": "1"},
            {"abst": "c", "keyword": ["d"], "label": "0"},
        )
    (clue / "tnews").mkdir()
    listener = Listener()
    out = finetune_clue(Source("clue", clue), base, tmp_path / "run", settings=FAST, progress=listener)
    results = Run(out).results()
    assert {name: score["metric"] for name, score in results["tasks"].items()} == {
        "csl": "accuracy",
        "chid": "accuracy",
        "cluener": "f1",
    }
    assert results["average"] == pytest.approx(sum(one["mean"] for one in results["tasks"].values()) / 3)
    assert set(results["absent"]) == set(CLUE) - {"csl", "chid", "cluener"}
    assert f"skipped, no files: {', '.join(results['absent'])}" in listener.said
    with pytest.raises(DataError, match=r"no CLUE task with train and dev files found; expected tnews/train.json"):
        finetune_clue(Source("clue", clue / "csl"), base, tmp_path / "no")
    with pytest.raises(
        DataError, match=r"is not a folder; expected the folder that contains the folders of CLUE's tasks"
    ):
        finetune_clue(Source("clue", tmp_path / "none"), base, tmp_path / "no")
    with pytest.raises(ConfigError, match="CLUE has dev sets; leave out --folds"):
        finetune_clue(Source("clue", clue), base, tmp_path / "no", search_settings=SearchSettings(folds=2))
    with pytest.raises(ConfigError, match="every task of CLUE has its own dev rows; leave out --dev"):
        finetune_clue(replace(Source("clue", clue), dev=clue), base, tmp_path / "no")
    with pytest.raises(ConfigError, match="clue is a suite of several tasks; name one of them: afqmc, tnews"):
        find_task("clue")
