"""Folders of ALBERT, both sentence heads, the span-boundary head, and half-precision weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from cloze.checkpoint import EmbeddingSettings, ModelFolder, TaskLabels, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError
from cloze.model import BertConfig, HeadName
from cloze.predict import Model
from cloze.text import write_vocabulary
from tests.model.made import SMALL, assert_close, assert_same_weights, model_folder, saved, vocabulary

ORACLE: Any = transformers  # transformers is only partly typed
ALBERT = replace(SMALL, embedding_size=10, shared_layers=True)
CONFIGS = {"bert": SMALL, "albert": ALBERT, "unshared albert": replace(ALBERT, shared_layers=False)}
HEADS: list[list[HeadName]] = [
    ["mlm", "nsp"],
    ["mlm", "sop"],
    ["nsp"],
    ["sop"],
    ["mlm", "sbo"],
    ["mlm", "sop", "sbo"],
    ["sequence"],
    ["token"],
    ["span"],
    ["choice"],
    [],
]
TASKS: dict[HeadName, TaskLabels] = {
    "sequence": TaskLabels("classify", ("no", "yes")),
    "token": TaskLabels("tag", ("no", "yes")),
    "span": TaskLabels("answer"),
    "choice": TaskLabels("choose"),
}


def read_values(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of ``config.json``, or remove those set to ``...``."""
    values = read_values(folder) | changes
    kept = {key: value for key, value in values.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: " ".join(heads) or "bare")
@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip(name: str, heads: list[HeadName], tmp_path: Path) -> None:
    task = next((TASKS[head] for head in heads if head in TASKS), None)
    contents = model_folder(heads, config=CONFIGS[name], task=task, pooler=True)
    folder = saved(contents, tmp_path / "model")
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, contents.model)
    assert loaded.model.config == contents.model.config
    assert (loaded.model.head_names, loaded.task, loaded.notes) == (contents.model.head_names, task, ())


@pytest.mark.parametrize("kind", ["classify", "multilabel"])
def test_a_single_label_is_no_regression(kind: str, tmp_path: Path) -> None:
    task = TaskLabels(kind, ("only",))
    contents = model_folder(["sequence"], task=task, labels=1)
    folder = saved(contents, tmp_path / "model")
    assert read_values(folder)["cloze_task"]["kind"] == kind
    assert load_folder(folder).task == task


def test_a_single_output_of_other_libraries_is_a_regression(tmp_path: Path) -> None:
    folder = saved(model_folder(["sequence"], task=TaskLabels("classify", ("only",)), labels=1), tmp_path / "model")
    change_config(folder, cloze_task=...)
    assert load_folder(folder).task == TaskLabels("regress")


@pytest.mark.parametrize(
    ("config", "head", "note", "classes"),
    [
        (SMALL, "nsp", None, ("BertForPreTraining", "BertForNextSentencePrediction")),
        (SMALL, "sop", "sop", ("BertForPreTraining", "BertForNextSentencePrediction")),
        (ALBERT, "sop", None, ("AlbertForPreTraining", "AlbertForPreTraining")),
        (ALBERT, "nsp", "nsp", ("AlbertForPreTraining", "AlbertForPreTraining")),
    ],
)
def test_sentence_heads(
    config: BertConfig, head: HeadName, note: str | None, classes: tuple[str, str], tmp_path: Path
) -> None:
    """Both sentence tasks use the same tensors; a setting in the folder distinguishes them, and is preserved."""
    folder = saved(model_folder(["mlm", head], config=config), tmp_path / "model")
    assert read_values(folder).get("cloze_sentence_task") == note
    assert read_values(folder)["architectures"] == [classes[0]]
    theirs, report = getattr(ORACLE, classes[0]).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    theirs.save_pretrained(tmp_path / "theirs")
    write_vocabulary(tmp_path / "theirs" / "vocab.txt", vocabulary(60))
    assert load_folder(tmp_path / "theirs").model.head_names == ("mlm", head)
    alone = saved(model_folder([head], config=config), tmp_path / "alone")
    assert read_values(alone)["architectures"] == [classes[1]]


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_boundary_head_lies_apart(name: str, tmp_path: Path) -> None:
    contents = model_folder(["mlm", "sop", "sbo"], config=CONFIGS[name])
    folder = saved(contents, tmp_path / "model")
    assert {key.split(".")[0] for key in load_file(folder / "pretraining_heads.safetensors")} == {"sbo"}
    assert (folder / "pretraining_heads.safetensors").stat().st_mode & 0o777 == 0o644
    family = "Bert" if name == "bert" else "Albert"
    for kind in ("ForMaskedLM", "ForPreTraining", "Model"):
        _, report = getattr(ORACLE, family + kind).from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"], kind
        assert not any("sbo" in key for key in report["unexpected_keys"]), kind
    # Saving a model without the span-boundary head removes its file, and the model loads without it.
    save_folder(replace(contents, model=model_folder(["mlm", "sop"], config=CONFIGS[name]).model), folder)
    assert not (folder / "pretraining_heads.safetensors").exists()
    assert load_folder(folder).model.head_names == ("mlm", "sop")


def test_the_separate_file_changes_no_other_tensor(tmp_path: Path) -> None:
    contents = model_folder(["mlm", "sbo"])
    folder = saved(contents, tmp_path / "model")
    path = folder / "pretraining_heads.safetensors"
    save_file(load_file(path) | {"cls.predictions.bias": torch.full((60,), 9.0)}, path)
    assert_same_weights(load_folder(folder).model, contents.model)
    path.write_bytes(b"not a head")
    with pytest.raises(CheckpointError, match=r"pretraining_heads.safetensors: 10 bytes with a header of"):
        load_folder(folder)


def test_albert_without_its_defaults(tmp_path: Path) -> None:
    """Keys that are missing or null get ALBERT's defaults, not BERT's."""
    config = replace(ALBERT, embedding_size=128, activation="gelu_new", dropout=0.0, attention_dropout=0.0)
    folder = saved(model_folder(["mlm", "sop"], config=config), tmp_path / "model")
    change_config(folder, embedding_size=..., hidden_act=None, hidden_dropout_prob=..., num_hidden_groups=...)
    change_config(folder, attention_probs_dropout_prob=..., inner_group_num=..., classifier_dropout_prob=...)
    assert load_folder(folder).model.config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_groups": 2},
            r": num_hidden_groups is 2 and inner_group_num 1; cloze supports ALBERT with one shared layer \(1 and 1\)",
        ),
        ({"inner_group_num": 2}, r": num_hidden_groups is 1 and inner_group_num 2; cloze supports ALBERT with one"),
        ({"num_hidden_groups": "1"}, r": num_hidden_groups is '1' and inner_group_num 1; cloze"),
        ({"num_hidden_groups": 3}, r": config.json requires 3 layers, but the last one has no tensors; use"),
        ({"num_hidden_layers": 2**24}, r": layers is 16777216; expected at most 256 shared layers$"),
        ({"embedding_size": 11}, r"word_embeddings.weight has shape \(60, 10\), but config.json requires \(60, 11\)"),
        ({"embedding_size": 2.5}, r": embedding_size is 2.5; expected a whole number"),
    ],
)
def test_other_alberts_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = saved(model_folder(["mlm"], config=ALBERT), tmp_path / "model")
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_folder(folder)


def test_copies_of_alberts_tied_tensors(tmp_path: Path) -> None:
    contents = model_folder(["mlm", "sop"], config=ALBERT)
    folder = saved(contents, tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    copies = {
        "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"].clone(),
        "predictions.decoder.bias": tensors["predictions.bias"].clone(),
        "albert.embeddings.position_ids": torch.arange(32)[None],
    }
    save_file(tensors | copies, path)
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, contents.model)
    assert loaded.notes == ()
    save_file(tensors | copies | {"predictions.decoder.weight": torch.zeros(60, 10)}, path)
    with pytest.raises(CheckpointError, match=r"predictions.decoder.weight differs from albert.embeddings.word"):
        load_folder(folder)


def test_sentence_transformers_reads_an_albert(tmp_path: Path) -> None:
    contents = replace(model_folder(config=ALBERT, pooler=True), embedding=EmbeddingSettings("mean", True))
    folder = saved(contents, tmp_path / "model")
    texts = ["the cat sat on a mat.", "dogs", ""]
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert_close(Model(contents, device="cpu").embed(texts), theirs.encode(texts))


HALVES = [torch.float16, torch.bfloat16]


@torch.no_grad()
@pytest.mark.parametrize("config", [SMALL, ALBERT], ids=["bert", "albert"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_weights(dtype: torch.dtype, config: BertConfig, tmp_path: Path) -> None:
    """Half-precision weights take half the space and load as float32 in cloze and, by default, in ``transformers``."""
    contents = model_folder(["mlm", "sbo"], config=config)
    whole = saved(contents, tmp_path / "whole")
    save_folder(contents, tmp_path / "half", dtype=dtype)
    for name in ("model.safetensors", "pretraining_heads.safetensors"):
        assert {tensor.dtype for tensor in load_file(tmp_path / "half" / name).values()} == {dtype}
        sizes = [sum(t.nbytes for t in load_file(folder / name).values()) for folder in (whole, tmp_path / "half")]
        assert sizes[1] * 2 == sizes[0]
    loaded = load_folder(tmp_path / "half").model
    for name, tensor in contents.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(dtype).float())
    theirs = ORACLE.AutoModelForMaskedLM.from_pretrained(tmp_path / "half").eval()
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.float32}
    ids = torch.tensor([contents.tokenizer("the cat sat on a mat").ids])
    assert_close(theirs(ids).logits, loaded.heads["mlm"](loaded(ids, torch.zeros_like(ids)).last))


def test_half_precision_has_an_end(tmp_path: Path) -> None:
    contents: ModelFolder = model_folder(["mlm"])
    with torch.no_grad():
        contents.model.heads["mlm"].bias[3] = -70_000.0  # type: ignore[operator]
    with pytest.raises(
        CheckpointError,
        match=r"^cls.predictions.bias: holds 7e\+04, too large for torch.float16; save it as bfloat16 or",
    ):
        save_folder(contents, tmp_path / "model", dtype=torch.float16)
    with pytest.raises(ConfigError, match=r"^dtype is torch.int8; expected torch.float32, float16 or bfloat16$"):
        save_folder(contents, tmp_path / "model", dtype=torch.int8)
    assert not (tmp_path / "model").exists()
    save_folder(contents, tmp_path / "model", dtype=torch.bfloat16)
