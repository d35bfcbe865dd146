"""GPT against transformers: BERT's layers with a causal mask, with padding, and every way to compute them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, BertLMHeadModel
from transformers import BertConfig as TheirConfig

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.checkpoint.folder import usual_pooling
from cloze.errors import ConfigError
from cloze.model import BertConfig, Gpt
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.model.surgery import with_heads
from cloze.text import Tokenizer

WORDS = ("winter", "garden", "house", "river", "stone", "cloud", "bread", "night")
TOKENIZER = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)


def random_config(seed: int) -> BertConfig:
    """Return a small random configuration without dropout."""
    draw = np.random.default_rng(seed)
    heads = int(draw.integers(1, 4))
    return BertConfig(
        vocab_size=TOKENIZER.size,
        hidden_size=heads * int(draw.integers(2, 9)) * 2,
        layers=int(draw.integers(1, 4)),
        heads=heads,
        feedforward_size=int(draw.integers(8, 65)),
        positions=int(draw.integers(12, 33)),
        segments=int(draw.integers(1, 4)),
        activation=str(draw.choice(["gelu", "gelu_new", "relu"])),
        dropout=0.0,
        attention_dropout=0.0,
        initial_deviation=0.2,
    )


def random_batch(config: BertConfig, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, segments and a padding mask, (4, 12)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, config.vocab_size, (4, 12), generator=generator)
    segments = torch.randint(0, config.segments, (4, 12), generator=generator)
    mask = torch.arange(12) < torch.tensor([12, 5, 9, 1])[:, None]
    return ids * mask, segments * mask, mask


def theirs_of(model: Gpt, folder: Path) -> BertLMHeadModel:
    """Save the model and load it with transformers."""
    save_folder(ModelFolder(model, TOKENIZER), folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert isinstance(theirs, BertLMHeadModel)
    theirs.train(False)
    return theirs


@pytest.mark.parametrize("seed", range(10))
def test_states_loss_and_gradients_equal_those_of_transformers(seed: int, tmp_path: Path) -> None:
    config = random_config(seed)
    model = Gpt.fresh(config, ["lm"], seed=seed).train()
    theirs = theirs_of(model, tmp_path / "gpt").train()
    ids, segments, mask = random_batch(config, seed)
    output = theirs(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask.long(),
        labels=ids.masked_fill(~mask, -100),
        output_hidden_states=True,
    )
    states = model.encode(ids, segments, mask, keep_states=True).states
    for ours, expected in zip(states, output.hidden_states, strict=True):
        torch.testing.assert_close(ours[mask], expected[mask], atol=1e-5, rtol=1e-5)
    positions = (torch.arange(12) < mask.sum(1, keepdim=True) - 1).flatten().nonzero().flatten()
    last = model(ids, segments, mask, positions).last
    loss = masked_word_loss(masked_word_logits(model, last, positions, "lm"), ids.flatten()[positions + 1])
    torch.testing.assert_close(loss, output.loss, atol=1e-5, rtol=1e-5)
    torch.autograd.backward(loss)
    torch.autograd.backward(output.loss)
    ours_grads = dict(model.named_parameters())
    theirs_grads = dict(theirs.named_parameters())
    for name, their_name in (
        ("encoder.embeddings.token.weight", "bert.embeddings.word_embeddings.weight"),
        ("encoder.embeddings.position.weight", "bert.embeddings.position_embeddings.weight"),
        ("encoder.layers.0.expand.weight", "bert.encoder.layer.0.intermediate.dense.weight"),
        ("heads.lm.dense.weight", "cls.predictions.transform.dense.weight"),
    ):
        torch.testing.assert_close(ours_grads[name].grad, theirs_grads[their_name].grad, atol=1e-5, rtol=1e-4)
    query, _, _ = ours_grads["encoder.layers.0.attention.query_key_value.weight"].grad.chunk(3)  # type: ignore[union-attr]
    expected = theirs_grads["bert.encoder.layer.0.attention.self.query.weight"].grad
    torch.testing.assert_close(query, expected, atol=1e-5, rtol=1e-4)


def test_a_folder_of_transformers_is_read(tmp_path: Path) -> None:
    config = TheirConfig(
        vocab_size=TOKENIZER.size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, is_decoder=True,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = BertLMHeadModel(config)
    theirs.train(False)
    theirs.save_pretrained(tmp_path / "theirs")
    TOKENIZER.save(tmp_path / "theirs")
    model = load_folder(tmp_path / "theirs").model
    assert isinstance(model, Gpt)
    assert model.head_names == ("lm",)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    with torch.inference_mode():
        logits = model.heads["lm"](model(ids, torch.zeros_like(ids)).last)
        torch.testing.assert_close(logits, theirs(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_packed_padded_and_single_sequences_agree(dropout: float) -> None:
    config = replace(random_config(3), dropout=dropout, attention_dropout=dropout)
    model = Gpt.fresh(config, ["lm"], seed=3).eval()
    ids, segments, mask = random_batch(config, 3)
    with torch.no_grad():
        packed = model.encode(ids, segments, mask).last
        explicit = model.encode(ids, segments, mask, keep_attentions=True)
    padded = model.encode(ids, segments, mask).last  # with gradients and in evaluation mode, nothing is packed
    torch.testing.assert_close(packed[mask], padded[mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed[mask], explicit.last[mask], atol=1e-5, rtol=1e-5)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model.encode(ids[row : row + 1, :length], segments[row : row + 1, :length]).last
        torch.testing.assert_close(packed[row, :length], alone[0], atol=1e-5, rtol=1e-5)
    for weights in explicit.attentions:
        assert torch.equal(weights, weights.tril())


def test_no_state_depends_on_later_tokens() -> None:
    config = random_config(1)
    model = Gpt.fresh(config, ["lm"], seed=1).eval()
    ids, segments, _ = random_batch(config, 1)
    ids = ids.clamp(min=5)
    changed = ids.clone()
    changed[:, 6:] = 5 + (ids[:, 6:] - 4) % (config.vocab_size - 5)
    before, after = (model.encode(some, segments).last for some in (ids, changed))
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_training_in_groups_gives_the_loss_of_the_padded_batch() -> None:
    config = random_config(2)
    model = Gpt.fresh(config, ["lm"], seed=2).train()
    ids, segments, mask = random_batch(config, 2)
    grouped = model.encode(ids, segments, mask).last
    rows = [model.encode(ids[row : row + 1, : int(n)], segments[row : row + 1, : int(n)]).last for row, n in
            enumerate(mask.sum(1))]  # fmt: skip
    torch.testing.assert_close(grouped[mask], torch.cat([row[0] for row in rows]), atol=1e-5, rtol=1e-5)
    assert torch.isfinite(functional.normalize(grouped)).all()


@pytest.mark.parametrize("head", ["sequence", "token", "span", "choice"])
def test_task_heads_are_restored(head: str, tmp_path: Path) -> None:
    model = Gpt.fresh(random_config(5), [head], labels=3 if head in ("sequence", "token") else 2, seed=5)  # type: ignore[list-item]
    save_folder(ModelFolder(model, TOKENIZER), tmp_path / "tuned")
    loaded = load_folder(tmp_path / "tuned").model
    assert isinstance(loaded, Gpt)
    assert loaded.head_names == (head,)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_masked_words_need_both_sides() -> None:
    with pytest.raises(ConfigError, match="head mlm: it predicts masked words from both sides"):
        Gpt(random_config(0), ["mlm"])


def test_a_new_head_reads_the_last_token() -> None:
    contents = ModelFolder(Gpt.fresh(random_config(0), ["lm"]), TOKENIZER)
    assert usual_pooling(contents) == "cls"
    tuned = with_heads(contents.model, ["sequence"], keep=False, seed=0)
    ids, segments, mask = random_batch(tuned.config, 0)
    with torch.no_grad():
        last = tuned.encode(ids, segments, mask).last
        assert tuned.pooler is not None
        expected = tuned.pooler(torch.stack([last[row, length - 1] for row, length in enumerate(mask.sum(1))]))
        torch.testing.assert_close(tuned.head_input("sequence", ids, segments, mask), expected)
