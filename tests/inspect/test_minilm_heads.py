"""A published model: attention weights equal those of ``transformers``, and labels hold on other text."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

import cloze
from cloze.inspect import HeadSettings
from cloze.inspect.survey import agreement, draw_samples, iter_attentions, survey_heads
from cloze.predict import Model, load

DATA = Path(cloze.__file__).parent / "demo" / "data"


@pytest.fixture(scope="module")
def model(minilm_folder: Path) -> Model:
    return load(minilm_folder)


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    lines = (DATA / "authors_dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [[line.split("\t")[0]] for line in lines]


def test_weights_of_a_survey_are_those_of_transformers(
    model: Model, minilm_folder: Path, documents: list[list[str]]
) -> None:
    oracle = BertModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()  # type: ignore[no-untyped-call]
    samples = draw_samples(documents, model.tokenizer, count=8, length=48, paired=True, seed=0)
    for index, weights in iter_attentions(model, samples):
        encoding = samples[index].encoding
        with torch.no_grad():
            theirs = oracle(
                input_ids=torch.tensor([encoding.ids]),
                token_type_ids=torch.tensor([encoding.segments]),
                output_attentions=True,
            ).attentions
        np.testing.assert_allclose(weights, torch.cat(theirs, 1)[0], atol=1e-5)
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


def test_labels_agree_on_the_other_half(model: Model, documents: list[list[str]]) -> None:
    settings = HeadSettings(
        sequences=24, max_length=40, shuffles=200, resamples=200, predictive_sequences=0, examples=1
    )
    first, second = (survey_heads(model, documents[start::2], settings) for start in (0, 1))
    assert agreement(first, second) >= 0.9
    for survey in (first, second):
        assert survey.labels[0][2] == "previous"
        assert survey.labels[1][8] == "next"
        assert survey.counts["separators"] > 36
