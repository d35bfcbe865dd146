"""DeBERTa 1 and 2: the same weights give the same states, loss and gradients as in ``transformers``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cloze.checkpoint import load_folder
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Backbone, DebertaV2, HeadName
from cloze.model.deberta import Deberta, DebertaConfig
from tests.model.made import assert_close
from tests.model.relatives import Draws, Inputs, assert_gradients, load_theirs, random_model, save_ours

ORACLE: Any = transformers


@dataclass(frozen=True)
class Case:
    """One random model in both libraries, and a batch for them."""

    ours: Backbone
    theirs: Any
    inputs: Inputs

    def their_output(self, **arguments: Any) -> Any:
        return self.theirs(
            input_ids=self.inputs.ids,
            token_type_ids=self.inputs.segments,
            attention_mask=self.inputs.mask.long(),
            output_hidden_states=True,
            output_attentions=True,
            **arguments,
        )


def common(draws: Draws) -> dict[str, Any]:
    """Draw the settings that both versions have."""
    heads = draws.number(1, 5)
    return {
        "vocab_size": draws.number(30, 200),
        "hidden_size": heads * draws.number(2, 9),
        "num_hidden_layers": draws.number(1, 4),
        "num_attention_heads": heads,
        "intermediate_size": draws.number(5, 60),
        "max_position_embeddings": draws.number(22, 60),
        "type_vocab_size": draws.number(0, 3),
        "hidden_act": draws.one_of("gelu", "gelu", "gelu_new", "relu"),
        "layer_norm_eps": draws.one_of(1e-7, 1e-5),
        "relative_attention": True,
        "max_relative_positions": draws.one_of(-1, draws.number(4, 30)),
        "position_biased_input": draws.one_of(True, False),
        "pos_att_type": draws.one_of(["c2p", "p2c"], ["c2p", "p2c"], ["p2c"], "c2p|p2c", ["c2p"]),
    }


def second_only(draws: Draws, values: dict[str, Any]) -> dict[str, Any]:
    """Draw the settings that only version 2 has."""
    reach = values["max_relative_positions"]
    reach = values["max_position_embeddings"] if reach < 1 else reach
    return {
        "position_buckets": draws.one_of(-1, draws.number(4, max(4, reach // 2))) if reach > 5 else -1,
        "share_att_key": draws.one_of(True, False),
        "norm_rel_ebd": draws.one_of("none", "layer_norm"),
    }


@pytest.fixture(params=[(version, seed) for version in (1, 2) for seed in range(10)], ids=str)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    version, seed = request.param
    draws = Draws(seed)
    values = common(draws)
    if version == 2:
        values |= second_only(draws, values)
    name = "DebertaV2" if version == 2 else "Deberta"
    legacy = draws.one_of(True, False) if version == 2 else True
    config = getattr(ORACLE, f"{name}Config")(**values, legacy=legacy)
    theirs = draws.fill(getattr(ORACLE, f"{name}ForMaskedLM")(config))
    ours = load_theirs(theirs, tmp_path)
    return Case(ours, theirs, Inputs.of(draws, config.vocab_size, config.type_vocab_size))


@torch.no_grad()
def test_states(case: Case) -> None:
    theirs = case.their_output()
    inputs = case.inputs
    ours = case.ours.encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True, keep_attentions=True)
    inputs.assert_states(ours.states, theirs.hidden_states)
    for our_weights, their_weights in zip(ours.attentions, theirs.attentions, strict=True):
        real = inputs.mask[:, None, :, None].expand_as(our_weights)
        assert_close(our_weights[real], their_weights[real])
    packed = case.ours.encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True)
    inputs.assert_states(packed.states, theirs.hidden_states)


def test_loss_and_gradients(case: Case) -> None:
    expected = case.their_output(labels=case.inputs.labels).loss
    expected.backward()
    loss = case.inputs.word_loss(case.ours)
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(loss, expected)
    assert_gradients(case.ours, case.theirs)


SMALL = DebertaConfig(vocab_size=60, hidden_size=16, layers=3, heads=2, feedforward_size=24, positions=32)
SECOND = replace(SMALL, position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm", max_relative_positions=24)
KINDS = pytest.mark.parametrize(("kind", "config"), [(Deberta, SMALL), (DebertaV2, SECOND)])


@KINDS
@torch.no_grad()
def test_transformers_loads_ours(kind: type[Backbone], config: DebertaConfig, tmp_path: Path) -> None:
    config = replace(config, enhanced_mask_decoder=False, pooler_hidden_act="gelu" if kind is Deberta else "tanh")
    inputs = Inputs.of(Draws(1), config.vocab_size, config.segments)
    arguments = {"attention_mask": inputs.mask.long(), "token_type_ids": inputs.segments}
    masked = random_model(kind, config, ["mlm"])
    theirs = ORACLE.AutoModelForMaskedLM.from_pretrained(save_ours(masked, tmp_path / "mlm")).eval()
    last = masked(inputs.ids, inputs.segments, inputs.mask).last
    logits = theirs(inputs.ids, **arguments).logits
    assert_close(masked.heads["mlm"](last)[inputs.mask], logits[inputs.mask])
    tasks: dict[str, HeadName] = {"SequenceClassification": "sequence", "TokenClassification": "token"}
    for name, head in tasks.items():
        model = random_model(kind, config, [head])
        folder = save_ours(model, tmp_path / head)
        theirs = getattr(ORACLE, f"AutoModelFor{name}").from_pretrained(folder, num_labels=3).eval()
        last = model(inputs.ids, inputs.segments, inputs.mask).last
        states = last if head == "token" else model.pooled(last, inputs.mask)
        found, expected = model.heads[head](states), theirs(inputs.ids, **arguments).logits
        real = inputs.mask if head == "token" else torch.ones(len(expected), dtype=torch.bool)
        assert_close(found[real], expected[real])
        restored = load_folder(folder).model
        assert restored.config == config
        assert all(torch.equal(tensor, restored.state_dict()[key]) for key, tensor in model.state_dict().items())


@KINDS
def test_the_mask_decoder_applies_the_last_layer_twice(
    kind: type[Backbone], config: DebertaConfig, tmp_path: Path
) -> None:
    """As in Microsoft's EnhancedMaskDecoder, here with the layers of transformers, which accept separate queries."""
    config = replace(SECOND, dropout=0.0, attention_dropout=0.0)
    if kind is Deberta:  # its layers in transformers do not: compare with version 2, which computes the same
        config = replace(config, position_buckets=-1, share_att_key=False, norm_rel_ebd="none")
    ours = random_model(DebertaV2, config, ["mlm"])
    theirs = ORACLE.DebertaV2Model.from_pretrained(save_ours(ours, tmp_path)).eval()
    inputs = Inputs.of(Draws(3), config.vocab_size, config.segments)
    output = theirs(inputs.ids, inputs.mask.long(), token_type_ids=inputs.segments, output_hidden_states=True)
    hidden = output.hidden_states[-2]
    encoder = theirs.encoder
    states = hidden + ours.encoder.embeddings.position.weight[: inputs.ids.shape[1]]
    for _ in range(2):
        states, _ = encoder.layer[-1](
            hidden,
            encoder.get_attention_mask(inputs.mask.long()),
            query_states=states,
            relative_pos=encoder.get_rel_pos(hidden),
            rel_embeddings=encoder.get_rel_embedding(),
        )
    found = ours.word_states(inputs.ids, inputs.segments, inputs.mask)
    assert_close(found[inputs.mask], states[inputs.mask])
    shuffled = inputs.positions[torch.randperm(len(inputs.positions))]
    some = ours.word_states(inputs.ids, inputs.segments, inputs.mask, shuffled).flatten(0, 1)
    assert_close(some[inputs.positions], states.flatten(0, 1)[inputs.positions])
    ours.train()  # the layers below run on the packed batch
    assert_close(ours.word_states(inputs.ids, inputs.segments, inputs.mask)[inputs.mask], states[inputs.mask])


@KINDS
def test_every_parameter_is_trained(kind: type[Backbone], config: DebertaConfig) -> None:
    model = random_model(kind, config, ["mlm"])
    inputs = Inputs.of(Draws(3), config.vocab_size, config.segments)
    inputs.word_loss(model).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_attention": False}, "relative_attention is False; cloze supports DeBERTa models with"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; cloze supports DeBERTa models with conv_kernel_size 0"),
        ({"pos_att_type": ["p2p"]}, r"pos_att_type is \['p2p'\]; expected 'c2p', 'p2c' or both"),
        ({"position_buckets": 60}, "position_buckets is 60 for distances up to 24; expected at most 44"),
        ({"position_buckets": 2}, "position_buckets is 2; expected at least 4, or -1"),
        ({"norm_rel_ebd": "batch"}, "norm_rel_ebd is 'batch'; expected 'none' or 'layer_norm'"),
        ({"share_att_key": 3}, "share_att_key is 3; expected False or True"),
        ({"position_biased_input": True}, "absolute positions are added only once"),
        ({"pooler_hidden_act": "relu"}, "pooler_hidden_act is 'relu'; expected 'tanh' or 'gelu'"),
    ],
)
def test_other_layers_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_ours(random_model(DebertaV2, SECOND, ["sequence"]), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))
    with pytest.raises(CheckpointError, match=message):
        load_folder(folder)


def test_the_first_version_has_no_buckets() -> None:
    with pytest.raises(ConfigError, match="only models of type 'deberta-v2' have them"):
        Deberta(SECOND)


@pytest.mark.parametrize("files", [("spm.model",), ("vocab.json", "merges.txt")])
def test_folders_with_other_tokenizers_are_refused(files: tuple[str, ...], tmp_path: Path) -> None:
    """As published by Microsoft: sentencepiece (version 2 and 3) and byte-level BPE (version 1)."""
    folder = save_ours(random_model(DebertaV2, SECOND, ["mlm"]), tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    for name in files:
        (folder / name).write_bytes(b"...")
    with pytest.raises(CheckpointError, match=rf"has {files[0]} .*; only WordPiece vocabularies are supported"):
        load_folder(folder)
