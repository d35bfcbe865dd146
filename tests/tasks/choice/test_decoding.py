"""Multiple choice: the logits equal those of transformers for any batch and any number of options."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForMultipleChoice

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.predict import Model, evaluate, load
from cloze.tasks.choice.decoding import evaluate_choices, option_logits
from cloze.tasks.choice.kind import Choice, Choices
from cloze.tasks.rows import Source
from tests.model.made import assert_close, model_folder, saved

FOLDER = model_folder(["choice"], task=TaskLabels("choose"))
MODEL = Model(FOLDER)
SOURCE = random.Random(3)
WORDS = FOLDER.tokenizer.pieces[22:]


def make_text(most: int = 14) -> str:
    return " ".join(SOURCE.choices(WORDS, k=SOURCE.randint(1, most)))


PROMPTS = [make_text() for _ in range(25)]
OPTIONS = [[make_text() for _ in range(SOURCE.randint(2, 6))] for _ in PROMPTS]


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    folder = saved(FOLDER, tmp_path / "model")
    theirs = BertForMultipleChoice.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for prompt, options, logits in zip(PROMPTS, OPTIONS, option_logits(load(folder), PROMPTS, OPTIONS), strict=True):
        encoded = tokenizer([prompt] * len(options), options, truncation=True, padding=True, return_tensors="pt")
        with torch.inference_mode():
            expected = theirs(**{name: tensor[None] for name, tensor in encoded.items()}).logits[0]
        assert_close(logits, expected)
        assert expected.std() > 1e-3  # otherwise the test would accept any order


def test_options_come_best_first_with_shares() -> None:
    for prompt, own, chosen in zip(PROMPTS, OPTIONS, MODEL.choose_all(PROMPTS, OPTIONS), strict=True):
        shares = [one.probability for one in chosen]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1)
        assert sorted(one.index for one in chosen) == list(range(len(own)))
        assert all(own[one.index] == one.text for one in chosen)
        alone = MODEL.choose(prompt, own)
        assert [one.index for one in alone] == [one.index for one in chosen]
        assert [one.probability for one in alone] == pytest.approx(shares, abs=1e-5)
    (logits,) = option_logits(MODEL, PROMPTS[:1], OPTIONS[:1])
    expected = torch.tensor(logits).softmax(0)
    assert_close([one.probability for one in MODEL.choose(PROMPTS[0], OPTIONS[0])], expected.sort(descending=True)[0])
    assert MODEL.choose_all([], []) == []


def test_bad_requests_are_told() -> None:
    with pytest.raises(RequestError, match=r"^1 options; expected at least 2$"):
        MODEL.choose("a", ["b"])
    with pytest.raises(RequestError, match=r"^1 prompts, but 2 lists of options; expected one for each$"):
        MODEL.choose_all(["a"], [["b", "c"], ["b", "c"]])
    with pytest.raises(RequestError, match="expected a list of texts, got a single text"):
        MODEL.choose("a", "bc")
    with pytest.raises(RequestError, match="this model has no 'choice' head"):
        Model(model_folder(["span"])).choose("a", ["b", "c"])
    alone = model_folder(["choice"], config=replace(FOLDER.model.config, segments=1), task=TaskLabels("choose"))
    with pytest.raises(RequestError, match="this model cannot separate option and prompt"):
        Model(alone).choose("a", ["b", "c"])


def test_long_options_are_told(caplog: pytest.LogCaptureFixture) -> None:
    MODEL.choose("the cat", ["sat", "sat " * 80])
    assert caplog.messages == ["1 of 2 options are longer than 32 tokens with their prompts and were cut"]


def test_broken_model_is_told() -> None:
    broken = model_folder(["choice"], task=TaskLabels("choose"))
    with torch.no_grad():
        for parameter in broken.model.heads["choice"].parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(RequestError, match="the scores of this model are not finite numbers; check its training"):
        Model(broken).choose("the cat", ["sat", "ran"])


def test_accuracy_and_wrong_rows() -> None:
    best = [chosen[0].index for chosen in MODEL.choose_all(PROMPTS, OPTIONS)]
    rows = [
        Choice(f"f:{number}", prompt, tuple(own), index if number % 5 else (index + 1) % len(own))
        for number, (prompt, own, index) in enumerate(zip(PROMPTS, OPTIONS, best, strict=True))
    ]
    evaluation = evaluate_choices(MODEL, Choices(rows), ("accuracy",))
    assert evaluation.metrics == {"accuracy": 0.8}
    assert [row["row"] for row in evaluation.wrong()] == ["f:0", "f:5", "f:10", "f:15", "f:20"]
    assert evaluation.predictions[1] == rows[1].options[best[1]]
    with pytest.raises(RequestError, match="these rows have no labels to evaluate against"):
        evaluate_choices(MODEL, Choices([replace(rows[0], target=None)]), ("accuracy",))


def test_folder_is_scored_by_file(tmp_path: Path) -> None:
    folder = saved(FOLDER, tmp_path / "model")
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"text": prompt, "options": own, "label": 0}) + "\n"
            for prompt, own in zip(PROMPTS, OPTIONS, strict=True)
        ),
        "utf-8",
    )
    found = evaluate(folder, Source("choose", tmp_path / "a.jsonl"))
    expected = [chosen[0].index == 0 for chosen in MODEL.choose_all(PROMPTS, OPTIONS)]
    assert found.metrics == {"accuracy": sum(expected) / len(expected)}
