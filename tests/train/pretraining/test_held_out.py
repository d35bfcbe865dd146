import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertForMaskedLM

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.corpus.batches import PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.errors import CheckpointError, ConfigError
from cloze.model.surgery import with_heads
from cloze.text import SPECIAL, Tokenizer
from cloze.train.pretraining.held_out import evaluate_masked_words, tokens_per_unit
from cloze.train.settings import MlmEvaluationSettings
from tests.corpus.texts import as_text, make_documents

SETTINGS = MlmEvaluationSettings(max_length=24)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "unseen.txt"
    path.write_text(as_text(make_documents(12)), encoding="utf-8")
    return path


def test_loss_is_that_of_transformers_on_the_same_blanks(base: Path, text: Path, tmp_path: Path) -> None:
    ours = evaluate_masked_words([text], base, settings=SETTINGS)
    tokenizer = Tokenizer.from_folder(base)
    data = prepare([text], base, tmp_path / "data", settings=PrepareSettings(held_out=0))
    batches = PretrainingBatches(
        Corpus.open(data),
        tokenizer,
        batch_size=1,
        examples=ExampleSettings(objective="none", max_length=24),
        masks=MaskSettings(),
        seed=0,
    )
    model: nn.Module = BertForMaskedLM.from_pretrained(base)
    model.eval()
    total, blanks = 0.0, 0
    for step in range(batches.steps_in(0)):
        batch = batches.at(step)
        labels = torch.full(batch.ids.shape, -100)
        labels.view(-1)[torch.from_numpy(batch.positions)] = torch.from_numpy(batch.targets)
        mask = (torch.arange(batch.ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]).long()
        with torch.inference_mode():
            loss = model(input_ids=torch.from_numpy(batch.ids), attention_mask=mask, labels=labels).loss
        total += float(loss) * len(batch.targets)
        blanks += len(batch.targets)
    assert ours["blanks"] == blanks
    assert ours["mlm_loss"] == pytest.approx(total / blanks, abs=1e-5)
    assert 0 < ours["standard_error"] < 0.2
    # Counted from the text itself: words and characters do not depend on the vocabulary.
    whole = text.read_text(encoding="utf-8").lower()
    tokens = len(tokenizer.encode_ids([whole])[0])
    words, characters = len(re.findall(r"\w+|[^\w\s]", whole)), len("".join(whole.split()))
    assert words < tokens < characters
    assert ours["mlm_loss_per_word"] == pytest.approx(ours["mlm_loss"] * tokens / words)
    assert ours["mlm_loss_per_character"] == pytest.approx(ours["mlm_loss"] * tokens / characters)


def test_units_of_a_corpus_by_hand() -> None:
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL, "play", "##ing", "a", "猫"], lowercase=True)
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    corpus = Corpus.from_documents([[[ids["play"], ids["##ing"], ids["a"]]], [[ids["猫"], tokenizer.unknown_id]]])
    # 5 tokens; playing, a, 猫 and [UNK] are 4 words of 7 + 1 + 1 + 1 characters.
    assert tokens_per_unit(corpus, tokenizer) == {"per_word": 5 / 4, "per_character": 5 / 10}


def test_the_same_blanks_every_time_and_no_more_than_asked(base: Path, text: Path) -> None:
    few = MlmEvaluationSettings(max_length=24, tokens=200)
    one, two = (evaluate_masked_words([text], base, settings=few) for _ in range(2))
    assert one == two
    assert 200 <= one["tokens"] < 200 + 24


def test_a_single_sentence_is_enough(base: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("The old captain follows the silver river.", encoding="utf-8")
    assert evaluate_masked_words([tmp_path / "one.txt"], base, settings=SETTINGS)["blanks"] >= 1


def test_a_model_without_the_head_is_named(base: Path, text: Path, tmp_path: Path) -> None:
    loaded = load_folder(base)
    bare = ModelFolder(with_heads(loaded.model, ["nsp"], keep=True, seed=0), loaded.tokenizer)
    save_folder(bare, tmp_path / "bare")
    with pytest.raises(
        CheckpointError, match=r"bare: no masked-LM head \(heads: nsp\); train one with 'cloze pretrain"
    ):
        evaluate_masked_words([text], tmp_path / "bare")


def test_more_tokens_than_the_model_reads_are_refused(base: Path, text: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"max_length is 9999, but the model accepts at most (\d+) tokens; use --max-length \1"
    ):
        evaluate_masked_words([text], base, settings=MlmEvaluationSettings(max_length=9999))
    with pytest.raises(ConfigError, match="tokens is 0; expected at least 1"):
        MlmEvaluationSettings(tokens=0)
    for change, message in (
        ({"seed": -1}, "seed is -1"),
        ({"mask_rate": 2.0}, "mask rate is 2.0"),
        ({"max_length": 4}, "is 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            MlmEvaluationSettings(**change)


def test_rows_are_read_as_they_are_for_training(base: Path, text: Path, tmp_path: Path) -> None:
    rows = text.read_text(encoding="utf-8").split("\n\n")
    lines = [json.dumps({"body": row}) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(["no", *lines]), encoding="utf-8")
    reading = PrepareSettings(text="body", on_bad_row="skip")
    found = evaluate_masked_words([tmp_path / "rows.jsonl"], base, settings=SETTINGS, reading=reading)
    assert found == evaluate_masked_words([text], base, settings=SETTINGS)
