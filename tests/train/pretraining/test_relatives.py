"""The objectives of XLNet, DeBERTa and ELECTRA against transformers, and the use of the trained models."""

import csv
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from cloze.checkpoint import load_folder
from cloze.checkpoint.names import hugging_face_names
from cloze.corpus.batches import PretrainingBatch
from cloze.errors import ConfigError, RequestError
from cloze.inspect.views.data import build_facts, trace_forward
from cloze.options import BackboneName
from cloze.predict import load
from cloze.predict.quantization.quantize import quantize
from cloze.progress import Silent
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.pretraining.objectives import OBJECTIVES
from cloze.train.pretraining.objectives.relatives import (
    RTD_WEIGHT,
    PermutationObjective,
    ReplacedTokenObjective,
    draw_words,
    original_ids,
    random_ranks,
)
from cloze.train.pretraining.phases import LengthSchedule, flops_per_token, open_tables
from cloze.train.pretraining.pretrain import pretrain, start_model
from cloze.train.settings import PretrainSettings, read_recipe
from tests.model.made import assert_close

ORACLE: Any = transformers
SETTINGS = PretrainSettings(
    preset="tiny", layers=2, hidden_size=32, heads=2, steps=2, batch_size=4, max_length=24, learning_rate=1e-3,
    evaluate_every=2, dropout=0.0,
)  # fmt: skip
NAMES: list[BackboneName] = ["deberta", "xlnet", "electra"]


def settings_of(name: BackboneName) -> PretrainSettings:
    return replace(SETTINGS, **read_recipe(name))


def objective_of(name: BackboneName, data: Path, **changes: Any) -> tuple[Any, PretrainingBatch]:
    """Return an objective with a new model, and a batch."""
    settings, tokenizer = replace(settings_of(name), **changes), Tokenizer.from_folder(data)
    model, _ = start_model(tokenizer, settings, None, Silent())
    batch = LengthSchedule.open(data, tokenizer, settings, open_tables(data, tokenizer, settings)).at(0)
    return OBJECTIVES[name].create(model, settings, torch.device("cpu")), batch


@pytest.fixture(scope="module", params=NAMES)
def trained(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run of every backbone."""
    out = tmp_path_factory.mktemp("runs") / request.param
    return request.param, pretrain(data, out, settings=settings_of(request.param))


def test_a_random_order_is_a_function_of_the_row(data: Path) -> None:
    _, batch = objective_of("xlnet", data)
    ranks = random_ranks(batch)
    width = batch.ids.shape[1]
    assert (np.flatnonzero(ranks) == batch.positions).all()
    for row in ranks:
        assert sorted(row[row > 0]) == list(range(1, (row > 0).sum() + 1))
    inside = batch.positions // width == 2
    alone = replace(
        batch, ids=batch.ids[2:3], lengths=batch.lengths[2:3], positions=batch.positions[inside] - 2 * width
    )
    assert (random_ranks(alone)[0] == ranks[2]).all()
    shares = [(batch.positions // width == row).sum() / length for row, length in enumerate(batch.lengths)]
    assert shares == pytest.approx([1 / 6] * len(shares), abs=0.05)


def test_permutation_loss_word_by_word(data: Path) -> None:
    """The loss equals the mean over all words of transformers' loss with this word, and those after it, hidden."""
    objective, batch = objective_of("xlnet", data)
    assert isinstance(objective, PermutationObjective)
    objective.eval()
    model, ranks, ids = objective.model, torch.from_numpy(random_ranks(batch)), torch.from_numpy(original_ids(batch))
    config = model.config
    theirs = ORACLE.XLNetLMHeadModel(
        ORACLE.XLNetConfig(
            vocab_size=config.vocab_size,
            d_model=32,
            n_layer=2,
            n_head=2,
            d_inner=config.feedforward_size,
            pad_token_id=0,
        )
    ).eval()
    state = {
        theirs_name: part
        for name, tensor in model.state_dict().items()
        for theirs_name, part in zip(
            hugging_face_names(name, "xlnet"), tensor.chunk(len(hugging_face_names(name, "xlnet"))), strict=True
        )
    }
    theirs.load_state_dict({**state, "lm_loss.weight": state["transformer.word_embedding.weight"]})
    losses = []
    for row, (order, length) in enumerate(zip(ranks, batch.lengths, strict=True)):
        for place in (order > 0).nonzero().flatten():
            hidden = (order[None, :length] >= order[:length, None]) & (order[None, :length] > 0)
            mapping = torch.zeros(1, 1, int(length))
            mapping[0, 0, place] = 1
            output = theirs(
                ids[row : row + 1, :length], perm_mask=hidden[None].float(), target_mapping=mapping, use_mems=False
            )
            losses.append(functional.cross_entropy(output.logits[0], ids[row, place][None]))
    output = objective(batch, batch.counts)
    assert_close(output.loss, torch.stack(losses).mean())
    assert 0 <= output.metrics["plm_accuracy"] <= 1


def electra_pair(objective: ReplacedTokenObjective) -> tuple[Any, Any]:
    """Return the generator and the discriminator as models of transformers."""
    pair = []
    for model, kind in (
        (objective.other_models(objective.model)["generator"], ORACLE.ElectraForMaskedLM),
        (objective.model, ORACLE.ElectraForPreTraining),
    ):
        config = model.config
        theirs = kind(
            ORACLE.ElectraConfig(
                vocab_size=config.vocab_size,
                embedding_size=config.table_width,
                hidden_size=config.hidden_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                intermediate_size=config.feedforward_size,
                max_position_embeddings=config.positions,
            )
        ).eval()
        state: dict[str, torch.Tensor] = {}
        for name, tensor in model.state_dict().items():
            names = hugging_face_names(name, "electra")
            state |= dict(zip(names, tensor.chunk(len(names)), strict=True))
        wanted = set(theirs.state_dict())
        theirs.load_state_dict({name: tensor for name, tensor in state.items() if name in wanted}, strict=False)
        theirs.tie_weights()
        pair.append(theirs)
    return pair[0], pair[1]


def test_replaced_token_loss_equals_transformers(data: Path) -> None:
    objective, batch = objective_of("electra", data, generator_size=0.5)
    assert isinstance(objective, ReplacedTokenObjective)
    objective.eval()
    generator, discriminator = electra_pair(objective)
    assert objective.generator.config.hidden_size == 16
    assert objective.generator.token_table is objective.model.token_table
    mask = torch.arange(batch.ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    arguments = {"attention_mask": mask.long(), "token_type_ids": torch.from_numpy(batch.segments)}
    positions, targets = torch.from_numpy(batch.positions), torch.from_numpy(batch.targets)
    labels = torch.full(batch.ids.shape, -100).flatten().index_copy(0, positions, targets).view(batch.ids.shape)
    first = generator(torch.from_numpy(batch.ids), labels=labels, **arguments)
    words = draw_words(first.logits.flatten(0, 1)[positions], seed=zlib.crc32(batch.ids.tobytes()))
    originals = torch.from_numpy(original_ids(batch))
    shown = originals.flatten().index_copy(0, positions, words).view_as(originals)
    replaced = (shown != originals).long()
    second = discriminator(shown, labels=replaced, **arguments)
    output = objective(batch, batch.counts)
    assert_close(output.metrics["mlm_loss"], first.loss)
    assert_close(output.metrics["rtd_loss"], second.loss)
    assert_close(output.loss, first.loss + RTD_WEIGHT * second.loss)
    flagged = (second.logits > 0)[mask]
    assert_close(output.metrics["rtd_accuracy"], (flagged == replaced[mask].bool()).float().mean())
    scores = objective.summarize({name: value.item() for name, value in output.metrics.items()})
    assert scores["rtd_constant"] == pytest.approx(1 - float(replaced[mask].float().mean()), abs=1e-6)
    found = float((flagged & replaced[mask].bool()).sum())
    assert scores["rtd_f1"] == pytest.approx(2 * found / float(flagged.sum() + replaced[mask].sum()), abs=1e-6)
    assert {"rtd_found", "rtd_flagged"}.isdisjoint(scores)


def test_words_are_drawn_by_their_probability() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log().expand(20_000, 3)
    shares = torch.bincount(draw_words(logits, seed=1), minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.02, rtol=0)


def test_every_parameter_of_both_models_is_trained(data: Path) -> None:
    objective, batch = objective_of("electra", data)
    objective(batch, batch.counts).loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters() if parameter.requires_grad)


def test_a_discriminator_is_a_bert_and_an_electra(data: Path, tmp_path: Path) -> None:
    run = pretrain(data, tmp_path / "run", settings=settings_of("electra"))
    ours = load_folder(run).model
    assert ours.head_names == ("rtd",)
    values = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert (values["model_type"], values["embedding_size"]) == ("bert", 32)
    ids = torch.tensor([[2, 7, 9, 11, 3]])
    states = ours(ids, torch.zeros_like(ids)).last.detach()
    for name in ("BertModel", "ElectraModel", "AutoModel"):
        theirs = getattr(ORACLE, name).from_pretrained(run / "model").eval()
        assert_close(states, theirs(ids).last_hidden_state)
    electra = ORACLE.ElectraForPreTraining.from_pretrained(run / "model").eval()
    assert_close(ours.heads["rtd"](states), electra(ids).logits)
    electra.save_pretrained(tmp_path / "saved")
    load_folder(run).tokenizer.save(tmp_path / "saved")
    restored = load_folder(tmp_path / "saved").model
    assert_close(restored.heads["rtd"](restored(ids, torch.zeros_like(ids)).last), electra(ids).logits)
    generator = load(run / "generator")
    assert generator.fill("the [MASK].", top=1)[0][0].probability > 0


def test_a_trained_masked_model_becomes_the_generator(data: Path, tmp_path: Path) -> None:
    masked = pretrain(data, tmp_path / "masked", settings=replace(SETTINGS, steps=1, hidden_size=16))
    settings = replace(settings_of("electra"), generator=masked, steps=1)
    run = pretrain(data, tmp_path / "run", settings=settings)
    assert load_folder(run / "generator").model.config == load_folder(masked).model.config
    assert load_folder(run).model.config.hidden_size == 32
    with pytest.raises(ConfigError, match=r"generator is .*, a model of type bert with the heads: rtd; use a BERT"):
        pretrain(data, tmp_path / "other", settings=replace(settings, generator=run))
    with pytest.raises(ConfigError, match="only the backbone electra has a generator"):
        replace(SETTINGS, generator=masked)
    with pytest.raises(ConfigError, match="generator_size is 0; expected a fraction above 0 and at most 1"):
        replace(settings_of("electra"), generator_size=0)


def test_operations_of_a_step(data: Path) -> None:
    tokenizer, costs = Tokenizer.from_folder(data), {}
    for name in ("bert", *NAMES):
        settings = replace(SETTINGS if name == "bert" else settings_of(name), mask_rate=0.15)
        if name == "bert":
            settings = replace(settings, objective="none")
        costs[name] = flops_per_token(start_model(tokenizer, settings, None, Silent())[0], settings)
    assert all(costs[name] > costs["bert"] for name in NAMES)


def test_held_out_metrics(trained: tuple[str, Path]) -> None:
    name, run = trained
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    expected = {
        "deberta": {"held_out_mlm_loss", "held_out_mlm_accuracy"},
        "xlnet": {"held_out_plm_loss", "held_out_plm_accuracy"},
        "electra": {"held_out_mlm_loss", "held_out_rtd_loss", "held_out_rtd_accuracy", "held_out_rtd_f1"}
        | {"held_out_rtd_constant", "held_out_rtd_replaced"},
    }[name]
    assert expected <= set(results)
    card = load_folder(run).card
    assert card is not None
    words = {"deberta": "masked language modelling", "xlnet": "permutation language modelling"}
    assert f"by {words.get(name, 'replaced-token detection')} on full sentences" in card


def write_rows(path: Path, columns: list[str], rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_fine_tuning(trained: tuple[str, Path], tmp_path: Path) -> None:
    """Each backbone is fine-tuned to classify, to tag and to answer, and the result is restored."""
    name, run = trained
    settings = FinetuneSettings(epochs=1, batch_size=4, max_length=16, learning_rate=1e-3)
    texts = [("the river was high", "yes"), ("we crossed it", "no")] * 6
    classes = write_rows(tmp_path / "classes.csv", ["text", "label"], texts)
    tags = tmp_path / "tags.txt"
    tags.write_text("the O\nriver B-X\n\nwe B-X\ncrossed O\n\n" * 4, encoding="utf-8")
    answers = tmp_path / "answers.json"
    question = {"id": "1", "question": "what was high?", "answers": [{"text": "river", "answer_start": 4}]}
    paragraphs = [{"context": "the river was high", "qas": [question | {"id": str(number)}]} for number in range(6)]
    answers.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    for task, path in (("classify", classes), ("tag", tags), ("answer", answers)):
        out = run_finetuning(Source(task, path, path), run, tmp_path / task, settings=settings)
        model = load(out)
        assert type(model.bert) is type(load_folder(run).model)
        assert model.precision == "fp32" or name == "electra"
    assert len(load(tmp_path / "classify").classify(["the river"])) == 1
    assert load(tmp_path / "tag").tag(["the river"])[0] is not None
    assert load(tmp_path / "answer").answer("what was high?", "the river was high") is not None


def test_what_applies_and_what_is_refused(trained: tuple[str, Path]) -> None:
    name, run = trained
    model = load(run, precision="auto")
    if name == "electra":
        with pytest.raises(RequestError, match="head"):
            model.fill("the [MASK] was high.")
        assert load(run, precision="int8").precision == "int8"  # its layers are those of BERT
        return
    assert model.precision == "fp32"
    [filled] = model.fill("the [MASK] was high.", top=3)
    assert len(filled) == 3
    assert model.attend("the river was high").weights.shape[:2] == (2, 2)
    assert build_facts(trace_forward(model, "the river was high"))["fills"] is None
    model_type = load_folder(run).model.model_type
    for refused in (lambda: load(run, precision="int8"), lambda: quantize(run, ["the river"])):
        with pytest.raises(ConfigError, match=f"is not implemented for models of type '{model_type}'"):
            refused()
