"""XLNet without memory: the same weights give the same states, loss and gradients as in ``transformers``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from cloze.checkpoint import load_folder
from cloze.errors import CheckpointError, ConfigError
from cloze.model import HeadName, XLNet
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.model.xlnet import XLNetConfig
from cloze.predict import load
from cloze.tasks.correction.kind import CorrectionSettings
from tests.model.made import assert_close
from tests.model.relatives import IGNORED, Draws, Inputs, assert_gradients, load_theirs, random_model, save_ours

ORACLE: Any = transformers


@dataclass(frozen=True)
class Case:
    """One random model in both libraries, a batch, and a random order for its labels."""

    ours: XLNet
    theirs: Any
    inputs: Inputs
    hidden: Tensor  # (B, T, T)
    rows: list[Tensor]  # positions to predict in each sequence

    def their_output(self) -> Any:
        """Run both streams, with the targets of each sequence padded to the same number."""
        count, (batch, length) = max(map(len, self.rows)), self.inputs.ids.shape
        mapping, labels = torch.zeros(batch, count, length), torch.full((batch, count), IGNORED)
        for row, positions in enumerate(self.rows):
            for slot, position in enumerate(positions):
                mapping[row, slot, position] = 1
                labels[row, slot] = self.inputs.ids[row, position]
        return self.theirs(
            self.inputs.ids,
            attention_mask=self.inputs.mask.float(),
            token_type_ids=self.inputs.segments,
            perm_mask=self.hidden.float(),
            target_mapping=mapping,
            labels=labels,
            output_hidden_states=True,
            use_mems=False,
        )


@pytest.fixture(params=range(10))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    draws = Draws(request.param)
    heads = draws.number(1, 4)
    config = ORACLE.XLNetConfig(
        vocab_size=draws.number(30, 150),
        d_model=2 * heads * draws.number(1, 5),
        n_layer=draws.number(1, 4),
        n_head=heads,
        d_inner=draws.number(5, 50),
        ff_activation=draws.one_of("gelu", "gelu", "gelu_new", "relu"),
        layer_norm_eps=draws.one_of(1e-12, 1e-5),
        clamp_len=draws.one_of(-1, draws.number(3, 12)),
        pad_token_id=0,
    )
    theirs = draws.fill(ORACLE.XLNetLMHeadModel(config))
    ours = load_theirs(theirs, tmp_path)
    assert isinstance(ours, XLNet)
    inputs = Inputs.of(draws, config.vocab_size, 3)
    hidden = torch.rand(*inputs.ids.shape, inputs.ids.shape[1], generator=draws.generator) < 0.4
    rows = [row.ne(IGNORED).nonzero().flatten() for row in inputs.labels]
    return Case(ours, theirs, inputs, hidden, rows)


@torch.no_grad()
def test_content_stream(case: Case) -> None:
    inputs = case.inputs
    theirs = case.theirs.transformer(
        inputs.ids,
        attention_mask=inputs.mask.float(),
        token_type_ids=inputs.segments,
        output_hidden_states=True,
        output_attentions=True,
        use_mems=False,
    )
    ours = case.ours.encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True, keep_attentions=True)
    inputs.assert_states(ours.states, theirs.hidden_states)
    for our_weights, their_weights in zip(ours.attentions, theirs.attentions, strict=True):
        real = inputs.mask[:, None, :, None].expand_as(our_weights)
        assert_close(our_weights[real], their_weights.permute(0, 1, 2, 3)[real])
    some = case.ours.encode(inputs.ids, inputs.segments, inputs.mask, needed=inputs.positions).last
    assert_close(some.flatten(0, 1)[inputs.positions], ours.last.flatten(0, 1)[inputs.positions])


@torch.no_grad()
def test_both_streams(case: Case) -> None:
    inputs, output = case.inputs, case.their_output()
    hidden = case.hidden | ~inputs.mask[:, None]
    states = case.ours.encoder.predict(inputs.ids, inputs.segments, hidden, inputs.positions)
    contents, queries = output.hidden_states[::2], output.hidden_states[1::2]
    inputs.assert_states(tuple(content for content, _ in states[:-1]), contents[:-1])
    for (_, ours), theirs in zip(states, queries, strict=True):
        expected = torch.cat([row[: len(places)] for row, places in zip(theirs, case.rows, strict=True)])
        assert_close(ours, expected)


def test_loss_and_gradients(case: Case) -> None:
    inputs = case.inputs
    expected = case.their_output().loss
    expected.backward()
    hidden = case.hidden | ~inputs.mask[:, None]
    _, queries = case.ours.encoder.predict(inputs.ids, inputs.segments, hidden, inputs.positions)[-1]
    loss = masked_word_loss(case.ours.heads["mlm"](queries), inputs.ids.flatten()[inputs.positions])
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(loss, expected)
    assert_gradients(case.ours, case.theirs)


CONFIG = XLNetConfig(
    vocab_size=60, hidden_size=16, layers=2, heads=2, feedforward_size=24, dropout=0.0, attention_dropout=0.0
)


@torch.no_grad()
def test_transformers_loads_ours(tmp_path: Path) -> None:
    inputs = Inputs.of(Draws(1), CONFIG.vocab_size, 2)
    arguments = {"attention_mask": inputs.mask.float(), "token_type_ids": inputs.segments, "use_mems": False}
    tasks: dict[str, HeadName] = {
        "SequenceClassification": "sequence",
        "TokenClassification": "token",
        "QuestionAnsweringSimple": "span",
    }
    for name, head in tasks.items():
        model = random_model(XLNet, CONFIG, [head])
        folder = save_ours(model, tmp_path / head)
        theirs = (
            getattr(ORACLE, f"XLNetFor{name}").from_pretrained(folder, num_labels=2 if head == "span" else 3).eval()
        )
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert values["architectures"] == [type(theirs).__name__]
        last, output = model(inputs.ids, inputs.segments, inputs.mask).last, theirs(inputs.ids, **arguments)
        if head == "span":
            found, expected = (
                torch.stack(model.heads[head](last)),
                torch.stack([output.start_logits, output.end_logits]),
            )
            assert_close(found[:, inputs.mask], expected[:, inputs.mask])
        elif head == "token":
            assert_close(model.heads[head](last)[inputs.mask], output.logits[inputs.mask])
        else:
            assert_close(model.heads[head](model.pooled(last, inputs.mask)), output.logits)
        restored = load_folder(folder).model
        assert restored.config == CONFIG
        assert all(torch.equal(tensor, restored.state_dict()[key]) for key, tensor in model.state_dict().items())


@torch.no_grad()
def test_a_word_does_not_see_itself_or_later_words() -> None:
    model = random_model(XLNet, CONFIG, ["mlm"])
    ids = torch.arange(5, 13)[None]
    ranks = torch.tensor([[0, 2, 0, 0, 1, 0, 3, 0]])
    needed, segments = ranks.flatten().nonzero().flatten(), torch.zeros_like(ids)

    def states(changed: dict[int, int]) -> Tensor:
        other = ids.clone()
        for place, value in changed.items():
            other[0, place] = value
        return torch.as_tensor(model.permuted_states(other, segments, None, needed, ranks)[0, needed])

    before = states({})  # rows: ranks 2, 1, 3
    changes = {
        1: [False, False, True],  # rank 2 is only seen by rank 3
        4: [True, False, True],
        6: [False, False, False],
        3: [True, True, True],  # context
    }
    for place, expected in changes.items():
        changed = (states({place: 40}) - before).abs().amax(-1) > 1e-6
        assert changed.tolist() == expected
    blind = model.word_states(ids, segments, None, needed)[0, needed]
    ids[0, needed] = 50
    assert_close(model.word_states(ids, segments, None, needed)[0, needed], blind)


def test_every_parameter_is_trained_and_checkpointing_changes_nothing() -> None:
    inputs = Inputs.of(Draws(5), CONFIG.vocab_size, 2)
    gradients = []
    for checkpointing in (False, True):
        model = random_model(XLNet, CONFIG, ["mlm"]).train()
        model.use_checkpointing(checkpointing)
        states = model.word_states(inputs.ids, inputs.segments, inputs.mask, inputs.positions)
        logits = masked_word_logits(model, states, inputs.positions)
        functional.cross_entropy(logits, inputs.ids.flatten()[inputs.positions]).backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad.any() for parameter in model.parameters())
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.equal(plain, recomputed)


def test_blanks_are_filled_from_both_sides(tmp_path: Path) -> None:
    model = load(save_ours(random_model(XLNet, CONFIG, ["mlm"]), tmp_path), precision="auto")
    assert model.precision == "fp32"
    first, second = model.fill_all(["the [MASK] sat on a mat.", "the [MASK] sat on a dog."], top=60)
    assert sum(filled.probability for filled in first[0]) == pytest.approx(1, abs=1e-4)
    assert first != second
    [score] = model.score(["the cat sat"])
    assert len(score.log_probabilities) == 3
    with pytest.raises(ConfigError, match="predicts words without reading them"):
        model.bert.word_states(torch.tensor([[2, 5, 3]]), torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match="reading is 'seen', but a model of type 'xlnet' predicts words unseen"):
        model.correct(["the cat sat"], CorrectionSettings(reading="seen"))
    with pytest.raises(ConfigError, match="precision int8 is not implemented for models of type 'xlnet'"):
        load(tmp_path, precision="int8")


def test_other_layers_are_refused(tmp_path: Path) -> None:
    folder = save_ours(random_model(XLNet, CONFIG), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"attn_type": "uni"}))
    with pytest.raises(CheckpointError, match="attn_type is 'uni'; cloze supports XLNet models with attn_type 'bi'"):
        load_folder(folder)
    with pytest.raises(ConfigError, match="clamp_len is 'far'; expected a whole number"):
        replace(CONFIG, clamp_len="far")  # type: ignore[arg-type]
