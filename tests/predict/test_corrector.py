"""Correction of misspellings, with models that have memorized a few sentences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from cloze.errors import ConfigError, DataError, RequestError
from cloze.predict import Corrected, Correction, Model
from cloze.predict import corrector as correction_module
from cloze.predict.corrector import CandidateGenerator, Corrector, NearWords, edit_distance
from cloze.predict.fill_mask import token_windows
from cloze.tasks.correction.kind import CorrectionSettings
from tests.model.made import model_folder
from tests.predict.taught import Example, hide_each, make_tokenizer, teach

ENGLISH = [
    *("the cat sat on the mat .", "the dog sat on the floor .", "we went home before night .", "send it from here ."),
    *("fill in the form .", "they walked along the river .", "she wrote a long letter .", "rain fell all night ."),
]
CHINESE = ["我喜欢吃苹果", "他在学校学习", "今天天气很好", "我们一起去公园"]

# These models are less confident than models trained on more text.
OFTEN = CorrectionSettings(mistakes=0.2)


@pytest.fixture(scope="module")
def english() -> Model:
    tokenizer = make_tokenizer(" ".join(ENGLISH).split())
    return teach(tokenizer, hide_each(tokenizer, ENGLISH))


@pytest.fixture(scope="module")
def chinese() -> Model:
    tokenizer = make_tokenizer([*dict.fromkeys("".join(CHINESE)), "平", "过", "员"])
    return teach(tokenizer, hide_each(tokenizer, CHINESE))


@pytest.fixture(scope="module")
def correcting() -> Model:
    """A model trained on misspelled sentences, in each of which one character is replaced."""
    tokenizer = make_tokenizer([*dict.fromkeys("".join(CHINESE)), "平", "过", "员"])
    draw = numpy.random.default_rng(0)
    examples: list[Example] = []
    for ids in (encoding.ids for encoding in tokenizer.encode_batch(CHINESE)):
        labels = [-100, *ids[1:-1], -100]
        examples.append((ids, labels))
        for place in range(1, len(ids) - 1):
            others = draw.integers(5, 5 + len(set("".join(CHINESE))) + 3, 3).tolist()
            examples += [([*ids[:place], wrong, *ids[place + 1 :]], labels) for wrong in others]
    return teach(tokenizer, examples)


def test_misspelt_word(english: Model) -> None:
    (one,) = english.correct(["the cat sta on the mat ."])
    assert one.target == "the cat sat on the mat ."
    assert one.errors == [("sta", "sat", 8)]
    (correction,) = one.corrections
    assert 0.9 <= correction.confidence <= 1
    (one,) = english.correct(["the caat sat on the mat ."])  # the words after a shorter replacement are unchanged
    assert one.target == "the cat sat on the mat ."


def test_real_word_in_the_wrong_place(english: Model) -> None:
    (one,) = english.correct(["send it form here ."], OFTEN)
    assert one.errors == [("form", "from", 8)]
    assert english.correct(["fill in the form ."], OFTEN)[0].errors == [], "a correct word is unchanged"


def test_nothing_else_changes(english: Model) -> None:
    text = "  The   dgo sat,\ton the FLOOR 3x!  Befroe “nihgt”\u3000\n"
    (one,) = english.correct([text])
    rebuilt = text
    for correction in reversed(one.corrections):
        start, end = correction.position, correction.position + len(correction.wrong)
        assert text[start:end] == correction.wrong
        rebuilt = rebuilt[:start] + correction.right + rebuilt[end:]
    assert one.source == text
    assert one.target == rebuilt


def test_capitals_are_kept(english: Model) -> None:
    (one,) = english.correct(["Teh cat sat on the mat ."])
    assert one.target == "The cat sat on the mat ."


def test_clean_texts_are_left_alone(english: Model, chinese: Model) -> None:
    assert [one.target for one in english.correct(ENGLISH)] == ENGLISH
    assert [one.target for one in chinese.correct(CHINESE)] == CHINESE


def test_names_are_left_alone(english: Model) -> None:
    text = "the cat Sta on the mat ."  # a capital letter inside a sentence
    assert english.correct([text])[0].errors == []
    assert english.correct(["the cat STA on the mat ."])[0].errors == []


def test_threshold_decides(english: Model) -> None:
    text = "send it form here ."
    (sure,) = english.correct([text], OFTEN)[0].corrections
    assert 0.9 < sure.confidence < 0.9999
    assert english.correct([text], replace(OFTEN, threshold=sure.confidence + 1e-5))[0].errors == []
    assert english.correct([text], replace(OFTEN, threshold=sure.confidence - 1e-5))[0].errors


def test_confidence_is_the_noisy_channels(chinese: Model) -> None:
    settings = CorrectionSettings(mistakes=0.01, threshold=0.0)
    corrector = Corrector(chinese, settings, similar={"平": ["苹", "过"]})
    (one,) = corrector.correct(["我喜欢吃平果"])
    (blank,) = chinese.fill("我喜欢吃[MASK]果", chinese.tokenizer.size)
    labels = dict(blank)
    weighted = {"苹": 0.01 * labels["苹"], "过": 0.01 * labels["过"], "平": labels["平"]}
    (correction,) = one.corrections
    assert correction.right == "苹"
    assert correction.confidence == pytest.approx(weighted["苹"] / sum(weighted.values()), rel=1e-3)


def test_chinese_characters(chinese: Model) -> None:
    results = chinese.correct(["我喜欢吃平果", "我们一起去公员", "今天天气很好。"])
    assert [one.target for one in results] == ["我喜欢吃苹果", "我们一起去公园", "今天天气很好。"]
    assert [one.errors for one in results] == [[("平", "苹", 4)], [("员", "园", 6)], []]


def test_confusion_lists_as_people_have_them(chinese: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "confusions.txt"
    for content in ("平:苹评\n", "平 苹 评\n", "平果\t苹果\n"):
        path.write_text(content, encoding="utf-8")
        targets = [one.target for one in chinese.correct(["我喜欢吃平果"], CorrectionSettings(similar=path))]
        assert targets == ["我喜欢吃苹果"]
    caplog.clear()
    path.write_text("平:苹龘\n", encoding="utf-8")
    Corrector(chinese, CorrectionSettings(similar=path))
    message = "1 of its 3 characters and words are not in the vocabulary and are never suggested: 龘"
    assert f"{path}: {message}" in caplog.messages


def test_similar_characters_alone(chinese: Model, tmp_path: Path) -> None:
    (tmp_path / "similar.tsv").write_text("平\t苹 评\n", encoding="utf-8")
    settings = CorrectionSettings(similar=tmp_path / "similar.tsv")
    targets = [one.target for one in chinese.correct(["我喜欢吃平果", "我们一起去公员"], settings)]
    assert targets == ["我喜欢吃苹果", "我们一起去公员"], "nothing is similar to 员"


def test_protected_words(chinese: Model, english: Model, tmp_path: Path) -> None:
    (tmp_path / "protect.txt").write_text("平果\nSta\n", encoding="utf-8")
    settings = CorrectionSettings(protect=tmp_path / "protect.txt")
    assert chinese.correct(["我喜欢吃平果"], settings)[0].errors == []
    assert english.correct(["the cat sta on the mat ."], settings)[0].errors == []
    assert Corrector(english, protected=["st"]).correct(["the cat sta on the mat ."])[0].errors, "no part of a word"


def test_one_pass_over_the_visible_text(correcting: Model) -> None:
    settings = CorrectionSettings(reading="seen")
    results = correcting.correct(["我喜欢吃平果", *CHINESE], settings)
    assert [one.target for one in results] == ["我喜欢吃苹果", *CHINESE]
    # The score is the probability of the visible token, not of a mask, and the error model is not used.
    bert, ids = correcting.bert, torch.tensor([correcting.tokenizer("我喜欢吃平果").ids])
    with torch.inference_mode():
        shares = bert.heads["mlm"](bert(ids, torch.zeros_like(ids)).last)[0, 5].softmax(-1).numpy()
    signs = [number for number, piece in enumerate(correcting.tokenizer.pieces) if piece >= "一"]
    (correction,) = results[0].corrections
    expected = shares[correcting.tokenizer.id("苹")] / shares[signs].sum()
    assert correction.confidence == pytest.approx(float(expected), rel=1e-4)


def test_words_in_pieces_are_hidden_in_any_case(english: Model) -> None:
    settings = CorrectionSettings(reading="seen")
    (one,) = english.correct(["the cat sta on the mat ."], settings)
    assert ("sta", "sat", 8) in one.errors


def test_long_texts_are_corrected_to_their_end(english: Model) -> None:
    text = " ".join(["the cat sat on the mat ."] * 12)
    wrong = text[:-9] + "teh mat ."
    (one,) = english.correct([wrong], CorrectionSettings(threshold=0.5))
    assert ("teh", "the", len(wrong) - 9) in one.errors


def test_the_batch_does_not_matter(english: Model) -> None:
    texts = ["the cat sta on the mat .", "", "send it form here .", "x", "rain fell all nihgt ."]
    together = english.correct(texts)
    alone = [english.correct([text])[0] for text in texts]
    assert [one.errors for one in together] == [one.errors for one in alone]
    assert english.correct([]) == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", 0),
        ("a", "", 1),
        ("teh", "the", 1),
        ("recieve", "receive", 1),
        ("kitten", "sitting", 3),
        ("ca", "abc", 3),
    ],
)
def test_mistakes_between_words(one: str, other: str, expected: int) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == expected


def test_near_words_are_all_of_them() -> None:
    draw = numpy.random.default_rng(1)
    words = list({"".join(draw.choice(list("abcd"), draw.integers(1, 9)).tolist()) for _ in range(400)})
    near = NearWords(words)
    for word in ("abcda", "dcb", "aabbccdd", "zz"):
        most = 2 if len(word) >= 5 else 1
        expected = {other for other in words if 0 < edit_distance(word, other) <= most}
        assert {words[number] for number, _ in near.near(word)} == expected
    assert NearWords([]).near("abc") == ()


def test_results_have_the_common_format() -> None:
    one = Corrected("少先队员因该", "少先队员应该", (Correction("因", "应", 4, 0.99),))
    assert {"source": one.source, "target": one.target, "errors": one.errors} == {
        "source": "少先队员因该",
        "target": "少先队员应该",
        "errors": [("因", "应", 4)],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 1.5}, r"^threshold is 1.5; expected a number from 0 to 1$"),
        ({"mistakes": 0.0}, r"^mistakes is 0.0; expected a fraction above 0 and below 1$"),
        ({"reading": "masked"}, r"^reading is 'masked'; expected hidden or seen$"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CorrectionSettings(**changes)  # type: ignore[arg-type]


def test_invalid_input_is_rejected(english: Model, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^expected a list of texts, got a single text"):
        english.correct("the cat")
    with pytest.raises(RequestError, match="no 'mlm' head"):
        Model(model_folder()).correct(["the cat"])
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        english.correct(["the cat"], CorrectionSettings(protect=tmp_path / "nowhere.txt"))


def test_similarity_lists_are_symmetric(english: Model) -> None:
    """A similarity list works in both directions: correct word first as in pre-training, or wrong word first."""
    for similar in ({"sat": ["zzt", "mat"]}, {"mat": ["Sat"]}):
        proposals = CandidateGenerator(english.tokenizer, similar, CorrectionSettings())
        (word,) = english.tokenizer.words(english.tokenizer("mat"), "mat")
        assert english.tokenizer.id("sat") in proposals.candidates(word, "mat")[0]


def test_candidates_for_any_character_are_unique(chinese: Model) -> None:
    proposals = CandidateGenerator(chinese.tokenizer, {}, CorrectionSettings())
    words = chinese.tokenizer.words(chinese.tokenizer("我喜欢"), "我喜欢")
    assert len({id(array) for word in words for array in proposals.candidates(word, "我喜欢")}) == 2


def test_near_words_are_listed_once(english: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(*given: Any) -> CandidateGenerator:
        made.append(given)
        return CandidateGenerator(*given)

    monkeypatch.setattr("cloze.predict.corrector.CandidateGenerator", make)
    model = Model(english._folder)
    assert model.correct(["the cat sta on the mat ."]) == model.correct(["the cat sta on the mat ."])
    assert len(made) == 1


@pytest.mark.parametrize("reading", ["hidden", "seen"])
def test_texts_are_corrected_a_few_at_a_time(reading: Any, english: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat sta on the mat .", "", "send it form here .", "x", "rain fell all nihgt .", "fill in teh form ."]
    settings = CorrectionSettings(reading=reading, threshold=0.5)
    expected, sizes = english.correct(texts, settings), list[int]()
    assert any(one.errors for one in expected)

    def windows(tokenizer: Any, some: Any) -> Any:
        sizes.append(len(some))
        return token_windows(tokenizer, some)

    monkeypatch.setattr(correction_module, "token_windows", windows)
    for texts_limit, characters_limit, blocks in ((2, 2**16, [2, 2, 2]), (256, 30, [2, 2, 1, 1]), (256, 1, [1] * 6)):
        monkeypatch.setattr(correction_module, "_BLOCK_TEXTS", texts_limit)
        monkeypatch.setattr(correction_module, "_BLOCK_CHARACTERS", characters_limit)
        sizes.clear()
        found = english.correct(texts, settings)
        assert sizes == blocks
        assert [one.target for one in found] == [one.target for one in expected]
        assert [one.errors for one in found] == [one.errors for one in expected]
