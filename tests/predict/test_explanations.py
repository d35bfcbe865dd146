"""Explanations: parity with captum, completeness, models whose answer is known, and the page and the command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import LayerIntegratedGradients

from cloze.checkpoint import ModelFolder, TaskLabels
from cloze.errors import RequestError
from cloze.model import Bert, BertConfig
from cloze.predict import Model
from cloze.predict.attributions import log_odds
from cloze.predict.integrated_gradients import Explainer, faithfulness
from tests.cli.conftest import Cloze, quiet_neighbours, run
from tests.model.made import SMALL, model_folder, saved
from tests.predict.taught import make_tokenizer

__all__ = ["quiet_neighbours", "run"]  # fixtures

TEXTS = ["the cat sat on a mat.", "a dog ran, the cat sat", "dogs"]
LABELS = TaskLabels("classify", ("good", "bad", "mixed"))
MEAN = replace(SMALL, head_pooling="mean")


def classifier(config: BertConfig = SMALL, task: TaskLabels = LABELS) -> Model:
    return Model(model_folder(["sequence"], config=config, task=task, labels=max(1, len(task.names))))


def tagger(names: tuple[str, ...] = ("O", "B-X", "I-X")) -> Model:
    return Model(model_folder(["token"], task=TaskLabels("tag", names), labels=len(names)))


@pytest.mark.parametrize("config", [SMALL, MEAN])
@pytest.mark.parametrize("reference", ["mask", "pad"])
@pytest.mark.parametrize("pair", [None, "a dog ran."])
def test_values_equal_those_of_captum(config: BertConfig, reference: str, pair: str | None) -> None:
    model = classifier(config)
    tokenizer, bert = model.tokenizer, model.bert
    for text in TEXTS:
        (why,) = model.explain([text], None if pair is None else [pair], label="bad", baseline=reference)  # type: ignore[arg-type]
        encoding = tokenizer(text, pair)
        ids, segments = torch.tensor([encoding.ids]), torch.tensor([encoding.segments])
        empty = tokenizer.mask_id if reference == "mask" else tokenizer.pad_id
        baseline = [
            number if source is None else empty for number, source in zip(encoding.ids, encoding.sources, strict=True)
        ]

        def forward(numbers: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            logits = bert.heads["sequence"](bert.head_input("sequence", numbers, segments, None))
            return torch.stack([log_odds(row, 1) for row in logits])

        theirs = LayerIntegratedGradients(forward, bert.token_table).attribute(
            ids,
            torch.tensor([baseline]),
            additional_forward_args=(segments,),
            n_steps=why.steps,
            method="gausslegendre",
        )
        tokens = theirs[0].sum(-1).tolist()
        words = tokenizer.words(encoding, text, pair)
        expected = [sum(tokens[word.first : word.first + len(word.tokens)]) for word in words]
        assert [(word.part, word.text) for word in why.words] == [(word.source, word.text) for word in words]
        np.testing.assert_allclose([word.value for word in why.words], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "pairs"),
    [
        (classifier(), None),
        (classifier(replace(MEAN, head_pooling="separate")), ["a dog.", "the mat", "cats sat on a mat"]),
        (classifier(task=TaskLabels("multilabel", ("x", "y"), threshold=0.3)), None),
        (classifier(task=TaskLabels("regress")), None),
        (tagger(), None),
        (tagger(("NN", "VB")), None),
    ],
)
def test_values_add_up_to_the_difference(model: Model, pairs: list[str] | None) -> None:
    found = model.explain(TEXTS, pairs, check=True)
    assert {why.row for why in found} == {0, 1, 2}
    for why in found:
        assert abs(why.delta) <= 0.01 * max(1, abs(why.output - why.baseline))
        assert why.deletion is not None
        assert why.random_deletion is not None
        expected = why.output if why.label is None else why.probability
        assert why.deletion[0] == pytest.approx(expected, abs=1e-5)
        assert why.deletion[-1] == pytest.approx(why.random_deletion[-1], abs=1e-5)


def test_output_is_the_log_odds_of_the_prediction() -> None:
    model = classifier(task=replace(LABELS, temperature=2.0))
    for why, label in zip(model.explain(TEXTS), model.classify(TEXTS), strict=True):
        assert why.label == label.label
        assert why.probability == pytest.approx(label.probability, abs=1e-5)
    (value,) = classifier(task=TaskLabels("regress")).explain(TEXTS[:1])
    assert value.output == pytest.approx(classifier(task=TaskLabels("regress")).regress(TEXTS[:1])[0], abs=1e-5)
    assert value.probability is None


def test_entities_have_the_words_of_the_whole_text() -> None:
    model = tagger()
    text = "the cat sat on a mat and the dog ran . " * 5  # several windows
    entities = model.tag([text])[0].entities
    found = model.explain([text])
    assert [(why.label, why.span) for why in found] == [(one.label, (one.start, one.end)) for one in entities]
    assert len(found) > 1
    assert all(text[word.start : word.end] == word.text for why in found for word in why.words)
    short = model.explain([TEXTS[0]])
    assert [word.text for word in short[0].words] == ["the", "cat", "sat", "on", "a", "mat", "."]
    assert model.explain([text], label="X") == found


def test_long_text_is_explained_in_all_its_windows() -> None:
    model = classifier(task=replace(LABELS, long_texts="windows"))
    text = "the cat sat on a mat and a dog ran . " * 6
    (why,) = model.explain([text])
    assert why.words[-1].end == len(text.rstrip())
    assert abs(why.delta) < 0.02
    assert why.probability == pytest.approx(model.classify([text])[0].probability, abs=1e-5)


def test_occlusion_is_the_drop_without_the_word() -> None:
    model = classifier()
    (why,) = model.explain(["the cat sat"], label="good", check=True)
    tokenizer = model.tokenizer
    ids = list(tokenizer("the cat sat").ids)
    ids[2] = tokenizer.mask_id
    with torch.inference_mode():
        logits = model.bert.heads["sequence"](
            model.bert.head_input("sequence", torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.long), None)
        )[0]
    assert why.words[1].occlusion == pytest.approx(why.output - float(log_odds(logits, 0)), abs=1e-5)


def keyword_model(words: list[str], keyword: str) -> Model:
    """Train a small model until its answer depends only on whether the keyword is in the text."""
    tokenizer = make_tokenizer(words)
    config = BertConfig(tokenizer.size, 32, 2, 2, 64, positions=32, dropout=0.0, attention_dropout=0.0)
    bert = Bert.fresh(config, ["sequence"], seed=1, labels=2).train()
    optimizer = torch.optim.Adam(bert.parameters(), 2e-3)
    draw = np.random.default_rng(0)
    for _ in range(150):
        texts = random_texts(draw, words, keyword, 32)
        ids = torch.tensor([tokenizer(text).ids for text in texts])
        goals = torch.tensor([int(keyword in text.split()) for text in texts])
        logits = bert.heads["sequence"](bert.head_input("sequence", ids, torch.zeros_like(ids), None))
        loss = torch.nn.functional.cross_entropy(logits, goals)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Model(ModelFolder(bert.eval(), tokenizer, TaskLabels("classify", ("no", "yes"))))


def random_texts(draw: np.random.Generator, words: list[str], keyword: str, count: int) -> list[str]:
    """Return texts of eight words; every other one has the keyword at a random place."""
    others = [word for word in words if word != keyword]
    texts = []
    for number in range(count):
        text = list(draw.choice(others, 8))
        if number % 2:
            text[draw.integers(8)] = keyword
        texts.append(" ".join(text))
    return texts


def test_the_word_that_decides_has_the_largest_attribution() -> None:
    words = ["red", "blue", "green", "pink", "brown", "black", "white", "grey", "violet", "orange"]
    model = keyword_model(words, "violet")
    texts = random_texts(np.random.default_rng(1), words, "violet", 200)[1::2]
    assert {label.label for label in model.classify(texts)} == {"yes"}
    assert [max(why.words, key=lambda word: word.value).text for why in model.explain(texts)] == ["violet"] * 100
    checked = model.explain(texts[:20], check=True)
    assert [max(why.words, key=lambda word: word.occlusion or 0).text for why in checked] == ["violet"] * 20
    measured = faithfulness(checked)
    assert measured is not None
    assert measured.gain[1] > 0
    assert measured.better == 1
    assert measured.deletion[0] == measured.random_deletion[0]


def test_more_steps_are_taken_until_the_sum_is_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    (accurate,) = model.explain(TEXTS[:1])
    monkeypatch.setattr("cloze.predict.integrated_gradients.FIRST_STEPS", 1)
    (why,) = model.explain(TEXTS[:1])
    assert why.steps > 1
    assert abs(why.delta) < 0.01
    assert [word.value for word in why.words] == pytest.approx([word.value for word in accurate.words], abs=0.02)


def test_parameters_are_unchanged() -> None:
    model = classifier()
    before = {name: tensor.clone() for name, tensor in model.bert.state_dict().items()}
    first = model.explain(TEXTS, check=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.bert.state_dict().items())
    assert all(parameter.grad is None for parameter in model.bert.parameters())
    assert model.explain(TEXTS, check=True) == first


def test_mistakes() -> None:
    with pytest.raises(RequestError, match=r"label is 'goood', but this model has no such label; did you mean 'good'"):
        classifier().explain(TEXTS, label="goood")
    with pytest.raises(RequestError, match=r"label is 'good', but this model predicts a number; leave out the label"):
        classifier(task=TaskLabels("regress")).explain(TEXTS, label="good")
    with pytest.raises(RequestError, match=r"label is 'Y', but this model has no such tag"):
        tagger().explain(TEXTS, label="Y")
    with pytest.raises(RequestError, match=r"a model that tags words takes single texts"):
        tagger().explain(TEXTS, TEXTS)
    with pytest.raises(RequestError, match=r"no 'sequence' head"):
        Model(model_folder(["mlm"])).explain(TEXTS)
    with pytest.raises(RequestError, match=r"computes in int8, which has no gradients; load it in fp32"):
        Model(model_folder(["sequence"], task=LABELS, labels=3), precision="int8").explain(TEXTS)
    assert faithfulness(classifier().explain(TEXTS)) is None
    assert Explainer(classifier()).reference == "mask"


def test_command(run: Cloze, tmp_path: Path) -> None:
    folder = saved(model_folder(["sequence"], task=LABELS, labels=3), tmp_path / "model")
    page = tmp_path / "why.html"
    result = run("explain", *TEXTS[:2], "--model", folder, "--check", "--out", page)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split("\t")[1:] == ["attribution", "occlusion"]
    assert any(line.startswith("convergence delta at most 0.00") for line in lines)
    assert any(line.startswith("deletion curve: ") for line in lines)
    assert lines[-1].startswith(f"{page}: 2 explanations, ")
    assert "the cat sat on a mat." in page.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in run("explain", *TEXTS, "--model", folder, "--json").out.splitlines()]
    assert [row["texts"] for row in rows] == [[text] for text in TEXTS]
    assert sum(word["value"] for word in rows[0]["words"]) == pytest.approx(
        rows[0]["output"] - rows[0]["baseline"] + rows[0]["delta"]
    )
    pair = run("explain", TEXTS[0], "--pair", "a dog", "--model", folder, "--json")
    assert json.loads(pair.out)["texts"] == [TEXTS[0], "a dog"]
    table = tmp_path / "rows.csv"
    table.write_text("body,other\nthe cat,a dog\n", encoding="utf-8")
    found = run("explain", "--input", table, "--text", "body", "--pair", "other", "--model", folder, "--json")
    assert json.loads(found.out)["texts"] == ["the cat", "a dog"]
    wrong = run("explain", "the cat", "--model", folder, "--out", tmp_path / "why.txt")
    assert wrong.complaint == f"--out {tmp_path / 'why.txt'}: expected .html"
