"""ELMo against two independent LSTM language models that are written with plain cell equations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import cloze
from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.corpus.batches import PretrainingBatch
from cloze.errors import ConfigError, RequestError
from cloze.model.adapters import Attachment, attach
from cloze.model.elmo import Elmo, ElmoConfig
from cloze.train.pretraining.objectives.relatives import BothDirectionsObjective
from tests.model.test_gpt import TOKENIZER


def random_config(seed: int) -> ElmoConfig:
    """Return a small random configuration without dropout."""
    draw = np.random.default_rng(seed)
    width = int(draw.integers(2, 9))
    return ElmoConfig(
        vocab_size=TOKENIZER.size,
        hidden_size=2 * width,
        layers=int(draw.integers(1, 4)),
        heads=1,
        feedforward_size=width + int(draw.integers(1, 20)),
        dropout=0.0,
        attention_dropout=0.0,
        initial_deviation=0.5,
    )


def reference_direction(model: Elmo, name: str, ids: list[int]) -> list[Tensor]:
    """Return the states of every layer for one sequence in reading order, (T, D) each, by the equations of an LSTM."""
    read = model.embedding.weight[ids]
    states = [read]
    for number in range(model.config.layers):
        weights = dict(getattr(model, name).layers[number].named_parameters())
        cells = model.config.feedforward_size
        cell, hidden = torch.zeros(cells), torch.zeros(read.shape[1])
        outputs = []
        for step in states[-1]:
            gates = weights["weight_ih_l0"] @ step + weights["bias_ih_l0"] + weights["weight_hh_l0"] @ hidden
            opened, kept, new, shown = (gates + weights["bias_hh_l0"]).split(cells)
            cell = kept.sigmoid() * cell + opened.sigmoid() * new.tanh()
            hidden = weights["weight_hr_l0"] @ (shown.sigmoid() * cell.tanh())
            outputs.append(hidden)
        states.append(torch.stack(outputs) + (states[-1] if number else 0))
    return states


def reference_states(model: Elmo, ids: list[int]) -> list[Tensor]:
    """Return the states of one sequence, embeddings first, (T, H) each."""
    forwards = reference_direction(model, "forwards", ids)
    backwards = [state.flip(0) for state in reference_direction(model, "backwards", ids[::-1])]
    return [torch.cat(pair, 1) for pair in zip(forwards, backwards, strict=True)]


ROWS = [[2, 5, 6, 7, 8, 9, 3], [2, 10, 3], [2, 11, 12, 5, 3]]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask of a padded batch."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return ids, torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]


@pytest.mark.parametrize("seed", range(10))
def test_states_loss_and_gradients_equal_those_of_two_language_models(seed: int) -> None:
    model = Elmo.fresh(random_config(seed), ["lm"], seed=seed).train()
    ids, mask = padded(ROWS)
    output = model.encode(ids, torch.zeros_like(ids), mask, keep_states=True)
    expected = [reference_states(model, row) for row in ROWS]
    assert len(output.states) == model.config.layers + 1
    for layer, state in enumerate(output.states):
        for row, states in enumerate(expected):
            torch.testing.assert_close(state[row, : len(ROWS[row])], states[layer], atol=1e-5, rtol=1e-5)
    losses = []
    width = model.config.table_width
    for sequence, states in zip(ROWS, expected, strict=True):
        tokens = torch.tensor(sequence)
        for logits, targets in ((states[-1][:-1, :width], tokens[1:]), (states[-1][1:, width:], tokens[:-1])):
            scores = logits @ model.embedding.weight.T + model.get_parameter("heads.lm.bias")
            losses.append(torch.nn.functional.cross_entropy(scores, targets, reduction="none"))
    reference = torch.cat(losses).mean()
    reference_gradients = torch.autograd.grad(reference, list(model.parameters()))
    positions = (torch.arange(ids.shape[1]) < mask.sum(1, keepdim=True) - 1).flatten().nonzero().flatten()
    batch = PretrainingBatch(
        ids=ids.numpy(), segments=np.zeros_like(ids.numpy()), lengths=mask.sum(1).numpy(), positions=positions.numpy(),
        targets=ids.flatten()[positions + 1].numpy(), labels=np.zeros(0, np.int64), boundaries=None,
        fates=np.zeros(len(positions), np.uint8), units=np.zeros((len(positions), 2), np.int64),
    )  # fmt: skip
    objective = BothDirectionsObjective(model, ("lm",), torch.device("cpu"))
    found = objective(batch, batch.counts)
    torch.testing.assert_close(found.loss, reference, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(found.loss, list(model.parameters())), reference_gradients, strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_neither_direction_reads_the_other_side() -> None:
    model = Elmo.fresh(random_config(1), ["lm"], seed=1).eval()
    width = model.config.table_width
    ids = torch.tensor([ROWS[0]])
    changed = ids.clone()
    changed[0, 3] = 12
    before, after = (model.encode(one, torch.zeros_like(one)).last[0] for one in (ids, changed))
    assert torch.equal(before[:3, :width], after[:3, :width])
    assert torch.equal(before[4:, width:], after[4:, width:])
    assert not torch.allclose(before[3:, :width], after[3:, :width])
    assert not torch.allclose(before[:4, width:], after[:4, width:])


def test_a_folder_is_restored_and_scores_by_its_forward_model(tmp_path: Path) -> None:
    made = Elmo.fresh(random_config(2), ["lm"], seed=2)
    save_folder(ModelFolder(made, TOKENIZER), tmp_path / "elmo")
    loaded = load_folder(tmp_path / "elmo").model
    assert isinstance(loaded, Elmo)
    assert loaded.config == made.config
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    model = cloze.load(tmp_path / "elmo")
    [score] = model.score(["winter garden house"])
    ids = [TOKENIZER.cls_id, *TOKENIZER.encode_ids(["winter garden house"])[0]]
    last = reference_direction(made, "forwards", ids)[-1]
    logs = (last[:-1] @ made.embedding.weight.T + made.get_parameter("heads.lm.bias")).log_softmax(-1)
    expected = logs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    torch.testing.assert_close(torch.tensor(score.log_probabilities), expected.detach(), atol=1e-5, rtol=1e-5)
    assert model.generate("winter", tokens=3, temperature=0)[0].tokens
    with pytest.raises(RequestError, match="a model of type 'elmo' has no attention weights"):
        model.attend("winter")
    with pytest.raises(RequestError, match="no 'mlm' head"):
        model.fill("winter [MASK]")


def test_frozen_features_are_the_learned_mixture_of_elmo() -> None:
    model = Elmo.fresh(replace(random_config(3), layers=2), ["lm"], seed=3)
    attach(model, Attachment("features", "token", 3, 8, reads="mix"), seed=0)
    assert model.reader is not None
    assert model.reader.weights is not None
    with torch.no_grad():
        model.reader.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        model.reader.scale.fill_(1.7)  # type: ignore[union-attr]
        ids, mask = padded(ROWS)
        found = model.eval()(ids, torch.zeros_like(ids), mask).last
        shares = torch.tensor([0.3, -1.0, 2.0]).softmax(0)
        for row, one in enumerate(ROWS):
            states = reference_states(model, one)
            expected = 1.7 * sum(share * state for share, state in zip(shares, states, strict=True))
            torch.testing.assert_close(found[row, : len(one)], expected, atol=1e-5, rtol=1e-5)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"reader.weights", "reader.scale", "heads.token.output.weight", "heads.token.output.bias"}


def test_estimates_are_those_of_the_model() -> None:
    config = random_config(4)
    model = Elmo.fresh(config, ["lm"])
    numbers = Elmo.estimate(config, ["lm"], batch=2, length=8, chosen=1.0)
    assert numbers.parameters == model.parameter_count()
    width, cells = config.table_width, config.feedforward_size
    products = 2 * config.layers * (8 * cells * width + cells * width) + 2 * width * config.vocab_size
    assert numbers.flops_per_token == model.training_flops(8, chosen=1.0) == 6 * products


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_size is 9; expected an even number"):
        ElmoConfig(hidden_size=9, heads=1)
    with pytest.raises(ConfigError, match="feedforward_size is 4; expected more cells"):
        ElmoConfig(hidden_size=8, heads=1, feedforward_size=4)
    with pytest.raises(ConfigError, match="checkpointing is not implemented for models of type 'elmo'"):
        Elmo.fresh(random_config(0)).use_checkpointing(True)
