"""Jointly filled blanks, where filling each blank separately gives the wrong words."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest

from cloze.errors import RequestError
from cloze.predict import Model
from cloze.predict import fill_mask as blanks
from cloze.predict.fill_mask import most_passes
from cloze.text import Encoding
from tests.model.made import model_folder
from tests.predict.taught import Example, make_tokenizer, teach

# Frequencies of word pairs. "north" is the most likely first word and "angeles" the most likely second, but they never
# co-occur.
PAIRS = {("north", "pole"): 4, ("los", "angeles"): 3, ("new", "angeles"): 3}


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = make_tokenizer(["north", "pole", "los", "new", "angeles", "the"])
    examples: list[Example] = []
    for words, count in PAIRS.items():
        ids = tokenizer(f"the {words[0]} {words[1]} .").ids
        for hidden in ((2, 3), (2,), (3,)):
            seen = [tokenizer.mask_id if place in hidden else piece for place, piece in enumerate(ids)]
            targets = [piece if place in hidden else -100 for place, piece in enumerate(ids)]
            examples += [(seen, targets)] * count
    return teach(tokenizer, examples)


def test_words_fit_each_other(model: Model) -> None:
    text = "the [MASK] [MASK] ."
    assert [blank[0].token for blank in model.fill(text)] == ["north", "angeles"], "each on its own"
    ways = model.fill_together(text, top=3)
    assert ways[0].tokens == ("north", "pole")
    assert {way.tokens for way in ways} == set(PAIRS)
    (alone,) = model.fill_together(text, top=1)
    assert alone.tokens == ("north", "pole"), "the most probable single word would be angeles"
    assert ways[0].text == "the north pole ."
    assert ways[0].log_probability == pytest.approx(math.log(0.4), abs=0.1)
    assert [way.log_probability for way in ways] == sorted((way.log_probability for way in ways), reverse=True)


def test_log_probability_is_the_chain(model: Model) -> None:
    (way, *_) = model.fill_together("the [MASK] [MASK] .", top=1, rounds=0)
    first, second = model.fill("the [MASK] [MASK] .", model.tokenizer.size)
    sure = max(first[0].probability, second[0].probability)
    assert sure == second[0].probability, "the second blank is filled first"
    start = dict(second)[way.tokens[1]]
    (rest,) = model.fill(f"the [MASK] {way.tokens[1]} .", model.tokenizer.size)
    assert way.log_probability == pytest.approx(math.log(start * dict(rest)[way.tokens[0]]), abs=1e-4)


def test_one_blank_is_filled_as_ever(model: Model) -> None:
    (alone,) = model.fill("the [MASK] pole .", 4)
    ways = model.fill_together("the [MASK] pole .", 4)
    assert [way.tokens for way in ways] == [(word.token,) for word in alone]
    numpy.testing.assert_allclose(
        [math.exp(way.log_probability) for way in ways], [word.probability for word in alone], rtol=1e-4
    )


def test_continuation_pieces_join_the_previous_word(model: Model) -> None:
    ways = model.fill_together("the north [MASK]", top=model.tokenizer.size)
    assert {"the norths", "the north pole"} <= {way.text for way in ways}
    assert not any("[MASK]" in way.tokens for way in ways[:-1])


def test_passes_are_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = model.run, []

    def counted(encodings: Any, step: Any) -> Any:
        read.append(len(encodings))
        return run(encodings, step)

    monkeypatch.setattr(model, "run", counted)
    for count, top, rounds in ((1, 1, 0), (2, 3, 2), (4, 7, 2), (3, 5, 4)):
        read.clear()
        model.fill_together("the" + " [MASK]" * count, top, rounds)
        assert 0 < sum(read) <= most_passes(count, top, rounds)


def test_no_blank_is_filled_with_a_blank(model: Model) -> None:
    ways = model.fill_together("the [MASK]", top=2 * model.tokenizer.size)
    assert len(ways) == model.tokenizer.size - 1
    assert all(math.isfinite(way.log_probability) for way in ways)


def test_invalid_input_is_rejected(model: Model) -> None:
    with pytest.raises(RequestError, match=r"^rounds is -1; expected at least 0 \(0: predict no blank again\)$"):
        model.fill_together("[MASK]", rounds=-1)
    with pytest.raises(RequestError, match=r"^top is 0; expected at least 1$"):
        model.fill_together("[MASK]", top=0)
    with pytest.raises(RequestError, match=r"^no \[MASK\] in 'the pole'"):
        model.fill_together("the pole")


def test_truncated_texts_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    text = "the [MASK] sat on a mat. " + "the dog ran. " * 40
    for ask in (Model.fill, Model.fill_together):
        caplog.clear()
        ask(Model(model_folder(["mlm"])), text)  # a new model, which has not yet warned about this text
        assert "1 of 1 texts are longer than" in caplog.text


def test_memory_is_bounded_by_blanks_not_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(model_folder(["mlm"]))
    text, size = "the [MASK] sat " + "[MASK] " * 19, model.tokenizer.size
    expected = model.fill_together(text, top=3)
    groups: list[list[int]] = []
    run = Model.run

    def recording(self: Model, encodings: Sequence[Encoding], step: Callable[..., Any]) -> Any:
        groups.append([one.ids.count(self.tokenizer.mask_id) for one in encodings])
        return run(self, encodings, step)

    monkeypatch.setattr(Model, "run", recording)
    assert model.fill_together(text, top=3)[0].tokens == expected[0].tokens
    assert max(map(len, groups)) == 20, "small tables are cached completely"
    groups.clear()
    monkeypatch.setattr(blanks, "_HELD_NUMBERS", 30 * size)
    found = model.fill_together(text, top=3)
    assert [way.tokens for way in found] == [way.tokens for way in expected]
    numpy.testing.assert_allclose(
        [way.log_probability for way in found], [way.log_probability for way in expected], atol=1e-4
    )
    assert all(sum(group) <= 30 or len(group) == 1 for group in groups)
    assert max(map(len, groups)) > 1


def test_whole_texts_are_processed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(model_folder(["mlm"]))
    encodings = [model.tokenizer("the cat sat" + " on a mat" * number) for number in range(6)]
    expected = list(blanks.seen_logs(model, iter(encodings)))
    monkeypatch.setattr(blanks, "_HELD_NUMBERS", 20 * model.bert.config.vocab_size)
    assert [len(group) for group in blanks._groups(iter(encodings), lambda one: len(one.ids), 8, 60)] == [2, 1, 1, 1, 1]
    for one, other in zip(blanks.seen_logs(model, iter(encodings)), expected, strict=True):
        numpy.testing.assert_allclose(one, other, atol=1e-5)
