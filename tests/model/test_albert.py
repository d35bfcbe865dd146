"""ALBERT: factorized embeddings and shared layers, with the same results in cloze and ``transformers``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder
from cloze.checkpoint.names import hugging_face_names, joined
from cloze.errors import ConfigError
from cloze.model import Backbone, Bert, HeadName
from cloze.model.losses import masked_word_logits, masked_word_loss, sentence_order_loss
from cloze.predict import Model
from cloze.text import write_vocabulary
from tests.model.made import SMALL, assert_close, model_folder, random_bert, saved, vocabulary

ORACLE: Any = transformers  # transformers is only partly typed
SHARED = replace(SMALL, embedding_size=10, shared_layers=True)
SHAPES = {
    "albert": SHARED,
    "no narrower": replace(SHARED, embedding_size=SMALL.hidden_size),
    "each layer its own": replace(SHARED, shared_layers=False),
}


def random_batch(batch: int, length: int, vocab_size: int, segments: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(1, vocab_size, (batch, length), generator=generator)
    kinds = torch.randint(0, segments, (batch, length), generator=generator)
    lengths = torch.randint(2, length + 1, (batch, 1), generator=generator)
    return ids, kinds, torch.arange(length) < lengths.clamp(min=length - batch + 1)


def their_model(seed: int) -> Any:
    """Return a random ALBERT of transformers in which all parameters are large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    heads = 1 + seed
    layers = 2 + seed % 3
    config = ORACLE.AlbertConfig(
        vocab_size=60 + seed,
        embedding_size=5 + 3 * seed,
        hidden_size=heads * (4 + seed),
        num_hidden_layers=layers,
        num_hidden_groups=layers if seed == 3 else 1,
        num_attention_heads=heads,
        intermediate_size=20 + seed,
        max_position_embeddings=24,
        type_vocab_size=1 + seed,
        hidden_act=["gelu_new", "gelu", "relu", "gelu_new"][seed],
        attn_implementation="eager",  # the only implementation that returns attention weights
    )
    model = ORACLE.AlbertForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = name.endswith(("LayerNorm.weight", "layer_norm.weight"))
            parameter.copy_(1 + 0.1 * noise if is_scale else 0.15 * noise)
    return model


@pytest.mark.parametrize("seed", range(4))
def test_transformers_model_in_cloze(seed: int, tmp_path: Path) -> None:
    """An ALBERT of transformers gives equal states, attention weights, logits, loss and gradients in cloze."""
    theirs = their_model(seed)
    theirs.save_pretrained(tmp_path)
    write_vocabulary(tmp_path / "vocab.txt", vocabulary(theirs.config.vocab_size))
    loaded = load_folder(tmp_path)
    ours = loaded.model
    assert (ours.head_names, loaded.notes) == (("mlm", "sop"), ())
    assert ours.config.shared_layers == (seed != 3)
    ids, segments, mask = random_batch(3, 11, theirs.config.vocab_size, theirs.config.type_vocab_size)
    labels = torch.full_like(ids, -100)
    labels[:, 1:3] = ids[:, 1:3]
    swapped = torch.tensor([0, 1, 0])
    expected = theirs(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask.long(),
        labels=labels,
        sentence_order_label=swapped,
        output_hidden_states=True,
        output_attentions=True,
    )
    output = ours.encoder(ids, segments, mask, keep_states=True, keep_attentions=True)
    assert len(output.states) - 1 == len(output.attentions) == ours.config.layers
    for our_state, their_state in zip(output.states, expected.hidden_states, strict=True):
        assert_close(our_state, their_state)
    for our_weights, their_weights in zip(output.attentions, expected.attentions, strict=True):
        assert_close(our_weights, their_weights)
    assert_close(ours.heads["mlm"](output.last), expected.prediction_logits)

    positions = (labels.flatten() != -100).nonzero().flatten()
    last = ours(ids, segments, mask).last
    words = masked_word_loss(masked_word_logits(ours, last, positions), ids.flatten()[positions])
    order, logits = sentence_order_loss(ours, last, swapped)
    assert_close(logits, expected.sop_logits)
    assert_close(words + order, expected.loss)
    expected.loss.backward()
    (words + order).backward()  # type: ignore[no-untyped-call]
    theirs_by_name = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        parts = [theirs_by_name.pop(part).grad for part in hugging_face_names(name, "albert")]
        assert_close(parameter.grad, joined(parts))
    assert not theirs_by_name


def logits(model: Backbone, last: Tensor) -> dict[str, Tensor]:
    """Return the output of each head, under the names used by ``transformers``."""
    found: dict[str, Tensor] = {}
    for name in model.head_names:
        head = model.heads[name]
        if name == "mlm":
            found["logits" if model.head_names == ("mlm",) else "prediction_logits"] = head(last)
        elif name == "sop":
            found["sop_logits"] = head(model.pooled(last, None))
        elif name == "token":
            found["logits"] = head(last)
        elif name == "span":
            found["start_logits"], found["end_logits"] = head(last)
        else:
            found["logits"] = head(model.pooled(last, None))
    return found or {"last_hidden_state": last, "pooler_output": model.pooled(last, None)}


CLASSES: dict[str, list[HeadName]] = {
    "AlbertModel": [],
    "AlbertForPreTraining": ["mlm", "sop"],
    "AlbertForMaskedLM": ["mlm"],
    "AlbertForSequenceClassification": ["sequence"],
    "AlbertForTokenClassification": ["token"],
    "AlbertForQuestionAnswering": ["span"],
    "AlbertForMultipleChoice": ["choice"],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CLASSES)
def test_ours_there(name: str, shape: str, tmp_path: Path) -> None:
    labelled = {"sequence", "token"} & set(CLASSES[name])
    task = TaskLabels("classify", ("no", "perhaps", "yes")) if labelled else None
    pooler = True if name == "AlbertModel" else None
    contents = model_folder(CLASSES[name], config=SHAPES[shape], labels=3, task=task, pooler=pooler)
    folder = saved(contents, tmp_path / "model")
    theirs, report = getattr(ORACLE, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    tokenizer = ORACLE.AutoTokenizer.from_pretrained(folder)
    first, second = ["the cat sat", "dogs"], ["on a mat.", "猫坐 ran"]
    inputs = tokenizer(first, second, padding=True, return_tensors="pt")
    for row, encoding in zip(inputs["input_ids"].tolist(), contents.tokenizer.encode_batch(first, second), strict=True):
        assert row[: len(encoding.ids)] == encoding.ids
    given = {key: value[None] for key, value in inputs.items()} if name == "AlbertForMultipleChoice" else inputs
    output = theirs.eval()(**given)
    last = contents.model(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"]).last
    for key, tensor in logits(contents.model, last).items():
        assert_close(output[key].reshape(tensor.shape), tensor)


def test_auto_classes_know_it(tmp_path: Path) -> None:
    folder = saved(model_folder(["mlm", "sop"], config=SHARED), tmp_path / "model")
    assert type(ORACLE.AutoModelForMaskedLM.from_pretrained(folder)).__name__ == "AlbertForMaskedLM"
    assert ORACLE.AutoTokenizer.from_pretrained(folder).mask_token == "[MASK]"


def test_one_layer_is_trained_by_all() -> None:
    model = random_bert(SHARED, ["mlm", "sop"])
    assert len(model.encoder.layers) == 1
    assert random_bert(replace(SHARED, layers=9), ["mlm", "sop"]).parameter_count() == model.parameter_count()
    ids, segments, mask = random_batch(2, 8, SHARED.vocab_size, 2)
    output = model.encoder(ids, segments, mask, keep_states=True)
    hidden, allowed = output.states[0], mask[:, None, None, :]
    for state in output.states[1:]:
        hidden, _ = model.encoder.layers[0](hidden, allowed, False)
        assert torch.equal(hidden, state)
    loss = masked_word_loss(masked_word_logits(model, output.last, torch.tensor([1, 9])), torch.tensor([5, 6]))
    (loss + sentence_order_loss(model, output.last, torch.tensor([0, 1]))[0]).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name


def test_all_predictions_work() -> None:
    """Filling, embedding, hidden states, attention weights and labels work as for BERT."""
    model = Model(model_folder(["mlm", "sop"], config=SHARED), device="cpu")
    assert len(model.fill("the [MASK] sat", 3)[0]) == 3
    assert model.embed(["the cat", "a mat sat"]).shape == (2, SMALL.hidden_size)
    assert model.hidden("the cat", layer=None).shape == (SMALL.layers + 1, 4, SMALL.hidden_size)
    assert model.attend("the cat").weights.shape == (SMALL.layers, SMALL.heads, 4, 4)
    task = TaskLabels("classify", ("no", "yes"))
    tuned: ModelFolder = model_folder(["sequence"], config=SHARED, task=task)
    assert Model(tuned, device="cpu").classify(["the cat"])[0].label in ("no", "yes")


def test_two_sentence_heads_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^heads nsp and sop: a model has at most one of them; they also share their names on disk"
    ):
        Bert(SMALL, ["mlm", "nsp", "sop"])
