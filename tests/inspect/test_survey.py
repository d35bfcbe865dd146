"""Surveys of whole models: untrained, with a constructed head, and published."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from cloze.checkpoint import ModelFolder
from cloze.errors import DataError
from cloze.inspect.patterns import PATTERNS
from cloze.inspect.survey import Survey, agreement, draw_samples, survey_heads
from cloze.model import Bert, BertConfig, HeadName
from cloze.model.config import preset
from cloze.model.encoder import SelfAttention
from cloze.predict import Model
from cloze.text import Tokenizer
from tests.inspect.made_heads import QUICK, made_documents
from tests.model.made import SMALL, vocabulary

SIX = set(PATTERNS) - {"self"}
# The width equals the number of positions, so that each position can have its own direction.
WIDE = BertConfig(vocab_size=100, hidden_size=96, layers=2, heads=2, feedforward_size=32, positions=48)


def made_model(bert: Bert) -> Model:
    tokenizer = Tokenizer.from_vocabulary(vocabulary(bert.config.vocab_size), lowercase=True, max_length=40)
    return Model(ModelFolder(bert, tokenizer), device="cpu")


@pytest.mark.parametrize(("seed", "heads"), [(0, ["mlm"]), (1, []), (2, [])])
def test_untrained_heads_have_none_of_the_six(seed: int, heads: list[HeadName]) -> None:
    config = preset("tiny", 100, layers=3, heads=4)
    survey = survey_heads(made_model(Bert.fresh(config, heads, seed=seed)), made_documents(seed), QUICK)
    assert len(survey.reports) == 12
    assert all(survey.counts[name] == 0 for name in SIX)
    assert np.abs(survey.scores.score - survey.scores.null).max() < 0.05
    assert {report.label for report in survey.reports} == {"broad"}


@torch.no_grad()
def with_shifted_head(shift: int) -> Bert:
    """Return a model in which layer 0, head 1 attends ``shift`` tokens ahead: positions are directions."""
    bert, size = Bert.fresh(WIDE, seed=4), WIDE.head_size
    embeddings, attention = bert.encoder.embeddings, bert.encoder.layers[0].attention
    embeddings.position.weight.zero_()
    embeddings.position.weight[:size, :size] = 4 * torch.eye(size)
    assert isinstance(attention, SelfAttention)
    weight = attention.query_key_value.weight
    query, key = weight[size : 2 * size], weight[WIDE.hidden_size + size : WIDE.hidden_size + 2 * size]
    for one in (query, key):
        one.zero_()
    query[:, :size] = 3 * torch.eye(size).roll(shift, 0)  # the query of a position is the direction of the shifted one
    key[:, :size] = 3 * torch.eye(size)
    return bert


@pytest.mark.parametrize(("shift", "name"), [(1, "next"), (-1, "previous"), (0, "self")])
def test_head_that_was_built_is_found(shift: int, name: str) -> None:
    survey = survey_heads(made_model(with_shifted_head(shift)), made_documents(), QUICK)
    assert survey.labels[0][1] == name
    assert survey.scores.score[PATTERNS.index(name), 1] > 0.95
    # The other heads are unchanged; larger position vectors give them no pattern.
    assert [label for row in survey.labels for label in row if label in SIX | {"self"}] == [name]
    example = survey.reports[1].examples[0]
    assert example.targets == (example.origin + shift,)
    assert example.weights[example.origin + shift] == max(example.weights) == pytest.approx(example.share)
    assert sum(example.weights) == pytest.approx(1.0, abs=1e-2)


def test_same_seed_gives_the_same_survey() -> None:
    bert = Bert.fresh(SMALL, ["mlm"], seed=1)
    first, again, other = (
        survey_heads(made_model(bert), made_documents(), replace(QUICK, seed=seed)) for seed in (0, 0, 1)
    )
    for name in ("score", "low", "high", "null", "null_high"):
        np.testing.assert_array_equal(getattr(first.scores, name), getattr(again.scores, name))
    assert first.reports == again.reports
    assert not np.array_equal(first.scores.score, other.scores.score)
    assert agreement(first, again) == 1.0


def test_padding_of_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made_model(with_shifted_head(1))
    together = survey_heads(model, made_documents(), QUICK)
    monkeypatch.setattr("cloze.inspect.survey.batches", lambda lengths: ([index] for index in range(len(lengths))))
    alone = survey_heads(model, made_documents(), QUICK)
    np.testing.assert_allclose(alone.scores.score, together.scores.score, atol=1e-5)


def test_single_sentences_leave_the_other_one_unmeasured() -> None:
    documents = [[document[0]] for document in made_documents(documents=40)]
    survey = survey_heads(made_model(Bert.fresh(SMALL)), documents, replace(QUICK, predictive_sequences=0))
    assert survey.unmeasured == ["other", "predictive"]
    assert survey.measured == 0
    assert all(set(example.segments) == {0} for report in survey.reports for example in report.examples)


def test_single_segment_model_gets_single_sentences() -> None:
    survey = survey_heads(made_model(Bert.fresh(replace(SMALL, segments=1))), made_documents(), QUICK)
    assert survey.unmeasured == ["other"]


def test_pairs_are_neighbours_and_no_sentence_is_in_two() -> None:
    documents = made_documents()
    tokenizer = Tokenizer.from_vocabulary(vocabulary(100), lowercase=True)
    samples = draw_samples(documents, tokenizer, count=60, length=64, paired=True, seed=0)
    assert len(samples) == 60
    after = {first: second for document in documents for first, second in pairwise(document)}
    assert all(after[sample.text] == sample.pair for sample in samples)
    assert len({text for sample in samples for text in (sample.text, sample.pair)}) == 120


def test_too_little_text() -> None:
    with pytest.raises(DataError, match=r"4 sequences of 6 tokens .* expected at least 8, .* give more text"):
        survey_heads(made_model(Bert.fresh(SMALL)), [*made_documents(documents=1), ["the cat."]], QUICK)


def test_agreement_counts_heads() -> None:
    survey = survey_heads(made_model(Bert.fresh(SMALL)), made_documents(), QUICK)
    changed = tuple(replace(one, labels=("next",)) if one.layer == 0 else one for one in survey.reports)
    other: Survey = replace(survey, reports=changed)
    assert agreement(survey, other) == pytest.approx(4 / 6)
