"""Folders written by cloze are restored bit for bit and can be loaded by other libraries."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from cloze.checkpoint import POOLINGS, EmbeddingSettings, ModelFolder, Pooling, TaskLabels, load_folder
from cloze.errors import CheckpointError
from cloze.model import Backbone, HeadName
from cloze.predict import Model
from tests.model.made import assert_close, assert_same_weights, model_folder, saved

THREE = TaskLabels("classify", ("no", "perhaps", "yes"))
FOLDERS = {
    "BertModel": model_folder(pooler=True),
    "BertForPreTraining": model_folder(["mlm", "nsp"]),
    "BertForMaskedLM": model_folder(["mlm"]),
    "BertForNextSentencePrediction": model_folder(["nsp"]),
    "BertForSequenceClassification": model_folder(["sequence"], labels=3, task=THREE),
    "BertForTokenClassification": model_folder(["token"], labels=3, task=replace(THREE, kind="tag")),
    "BertForQuestionAnswering": model_folder(["span"], task=TaskLabels("answer")),
    "BertForMultipleChoice": model_folder(["choice"], task=TaskLabels("choose")),
}
NUMBERS = model_folder(["sequence"], labels=1, task=TaskLabels("regress"))


@pytest.mark.parametrize("contents", [model_folder(), *FOLDERS.values(), NUMBERS], ids=["bare", *FOLDERS, "regression"])
def test_round_trip(contents: ModelFolder, tmp_path: Path) -> None:
    loaded = load_folder(saved(contents, tmp_path / "model"))
    assert_same_weights(loaded.model, contents.model)
    assert loaded.model.config == contents.model.config
    assert (loaded.model.head_names, loaded.task) == (contents.model.head_names, contents.task)
    assert loaded.tokenizer.settings == contents.tokenizer.settings
    assert not loaded.model.training


def logits(model: Backbone, last: Tensor) -> dict[str, Tensor]:
    """Return the output of each head, under the names used by ``transformers``."""
    by_head: dict[HeadName, Callable[[], dict[str, Tensor]]] = {
        "mlm": lambda: {"prediction_logits": model.heads["mlm"](last)},
        "nsp": lambda: {"seq_relationship_logits": model.heads["nsp"](model.pooled(last, None))},
        "sequence": lambda: {"logits": model.heads["sequence"](model.pooled(last, None))},
        "token": lambda: {"logits": model.heads["token"](last)},
        "span": lambda: dict(zip(("start_logits", "end_logits"), model.heads["span"](last), strict=True)),
        "choice": lambda: {"logits": model.heads["choice"](model.pooled(last, None))[None]},
    }
    found = {name: tensor for head in model.head_names for name, tensor in by_head[head]().items()}
    if len(model.head_names) == 1 and len(found) == 1:
        return {"logits": next(iter(found.values()))}  # a single head needs no prefix
    return found or {"last_hidden_state": last, "pooler_output": model.pooled(last, None)}


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_loads_our_folders(name: str, tmp_path: Path) -> None:
    contents = FOLDERS[name]
    folder = saved(contents, tmp_path / "model")
    theirs, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(["the cat sat", "dogs"], ["on a mat.", "ran"], padding=True, return_tensors="pt")
    ids, segments, mask = (inputs[key] for key in ("input_ids", "token_type_ids", "attention_mask"))
    # In transformers, choices are a separate dimension: (1, choices, T).
    given = {key: value[None] for key, value in inputs.items()} if name == "BertForMultipleChoice" else inputs
    output = theirs.eval()(**given)
    expected = logits(contents.model, contents.model(ids, segments, mask).last)
    for key, tensor in expected.items():
        assert_close(output[key], tensor)


def test_transformers_knows_the_labels(tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(
        saved(FOLDERS["BertForSequenceClassification"], tmp_path / "labels")
    )
    assert config.id2label == {0: "no", 1: "perhaps", 2: "yes"}
    assert config.problem_type == "single_label_classification"
    config = transformers.AutoConfig.from_pretrained(saved(NUMBERS, tmp_path / "numbers"))
    assert (config.num_labels, config.problem_type) == (1, "regression")


TEXTS = ["the cat sat on a mat.", "", "dogs", "猫坐 on word7, word8 " * 9]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", [pooling for pooling in POOLINGS if pooling != "mean_words"])
def test_sentence_transformers_loads_our_folders(pooling: Pooling, normalize: bool, tmp_path: Path) -> None:
    settings = EmbeddingSettings(pooling, normalize)
    contents = replace(FOLDERS["BertModel"], embedding=settings)
    folder = saved(contents, tmp_path / "model")
    assert load_folder(folder).embedding == settings
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == contents.tokenizer.max_length
    ours = Model(contents).embed(TEXTS)
    assert_close(ours, theirs.encode(TEXTS))
    # The folder saved again by sentence-transformers, in its own format, gives the same model.
    theirs.save(str(tmp_path / "theirs"))
    again = load_folder(tmp_path / "theirs")
    assert again.embedding == settings
    assert_same_weights(again.model, contents.model)


def test_mean_of_the_words_is_refused_by_sentence_transformers(tmp_path: Path) -> None:
    settings = EmbeddingSettings("mean_words", normalize=True)
    contents = replace(FOLDERS["BertModel"], embedding=settings)
    folder = saved(contents, tmp_path / "model")
    assert load_folder(folder).embedding == settings
    assert_close(Model(load_folder(folder)).embed(TEXTS), Model(contents).embed(TEXTS))
    # sentence-transformers has no such mode, and must not silently use another one.
    with pytest.raises(ValueError, match="mean_words"):
        SentenceTransformer(str(folder), device="cpu")
    assert transformers.AutoModel.from_pretrained(folder).config.hidden_size == 16


def test_pooler_is_a_dense_module_of_sentence_transformers(tmp_path: Path) -> None:
    contents = replace(FOLDERS["BertModel"], embedding=EmbeddingSettings("pooler"))
    folder = saved(contents, tmp_path / "model")
    modules = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert modules == ["Transformer", "Pooling", "Dense"]
    assert load_folder(folder).embedding == EmbeddingSettings("pooler")
    # A Dense module with weights other than the pooler's is kept.
    tensors = load_file(folder / "2_Dense" / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, folder / "2_Dense" / "model.safetensors")
    changed = load_folder(folder).embedding
    assert (changed.pooling, len(changed.projections)) == ("cls", 1)


def test_pooler_vectors_need_a_pooler_to_be_saved(tmp_path: Path) -> None:
    contents = replace(model_folder(["mlm"]), embedding=EmbeddingSettings("pooler"))
    with pytest.raises(CheckpointError, match=r"^pooling is 'pooler', but this model has no pooler"):
        saved(contents, tmp_path / "model")
    assert not (tmp_path / "model").exists()
