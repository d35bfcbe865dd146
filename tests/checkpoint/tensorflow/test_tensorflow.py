"""Google's checkpoint -> model -> folder: every value is converted, with the right orientation."""

import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from safetensors.torch import load_file

from cloze.checkpoint import load_folder
from cloze.checkpoint.convert import convert
from cloze.checkpoint.names import from_tensorflow
from cloze.errors import CheckpointError
from cloze.text import SPECIAL, write_vocabulary
from tests.model.made import assert_close

ORACLE: Any = transformers  # transformers is only partly typed
TINY_BERT = Path(__file__).parents[1] / "fixtures" / "tensorflow" / "tiny_bert"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the checkpoint's folder that tests may change."""
    return Path(shutil.copytree(TINY_BERT, tmp_path / "google"))


# Google's names are written out, because computing them could repeat an error of the code.
NAMES = {
    "bert/embeddings/word_embeddings": ("bert.embeddings.word_embeddings.weight", False),
    "bert/embeddings/token_type_embeddings": ("bert.embeddings.token_type_embeddings.weight", False),
    "bert/embeddings/position_embeddings": ("bert.embeddings.position_embeddings.weight", False),
    "bert/embeddings/LayerNorm/gamma": ("bert.embeddings.LayerNorm.weight", False),
    "bert/embeddings/LayerNorm/beta": ("bert.embeddings.LayerNorm.bias", False),
    "bert/encoder/layer_11/attention/self/key/kernel": ("bert.encoder.layer.11.attention.self.key.weight", True),
    "bert/encoder/layer_0/intermediate/dense/bias": ("bert.encoder.layer.0.intermediate.dense.bias", False),
    "bert/pooler/dense/kernel": ("bert.pooler.dense.weight", True),
    "cls/predictions/transform/dense/kernel": ("cls.predictions.transform.dense.weight", True),
    "cls/predictions/output_bias": ("cls.predictions.bias", False),
    "cls/seq_relationship/output_weights": ("cls.seq_relationship.weight", False),
    "cls/seq_relationship/output_bias": ("cls.seq_relationship.bias", False),
    "output_weights": ("classifier.weight", False),
    "output_bias": ("classifier.bias", False),
    "cls/squad/output_weights": ("qa_outputs.weight", False),
    "cls/squad/output_bias": ("qa_outputs.bias", False),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert from_tensorflow(name) == NAMES[name]


def test_every_tensor_arrives_to_the_bit(tmp_path: Path) -> None:
    contents = convert(TINY_BERT, tmp_path / "model")
    assert contents.notes == ()
    written = load_file(tmp_path / "model" / "model.safetensors")
    with numpy.load(TINY_BERT / "expected.npz", allow_pickle=False) as arrays:
        expected = dict(arrays)
    leftovers = {name for name in expected if "adam" in name or name == "global_step"}
    assert len(leftovers) == 3
    for name in expected.keys() - leftovers:
        renamed, _ = from_tensorflow(name)
        turned = expected[name].T if name.endswith("kernel") else expected[name]
        numpy.testing.assert_array_equal(written.pop(renamed).numpy(), turned, err_msg=name)
    assert not written


@torch.no_grad()
def test_transformers_reads_the_converted_folder(tmp_path: Path) -> None:
    ours = convert(TINY_BERT, tmp_path / "model")
    theirs, report = ORACLE.BertForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values())
    inputs = ORACLE.AutoTokenizer.from_pretrained(tmp_path / "model")(
        "The old cats sat.", "a dog ran", return_tensors="pt"
    )
    encoding = ours.tokenizer("The old cats sat.", "a dog ran")
    assert inputs["input_ids"].tolist() == [encoding.ids]
    output = theirs.eval()(**inputs)
    last = ours.model(torch.tensor([encoding.ids]), torch.tensor([encoding.segments])).last
    assert_close(ours.model.heads["mlm"](last), output.prediction_logits)
    pooled = ours.model.pooled(last, None)
    assert_close(ours.model.heads["nsp"](pooled), output.seq_relationship_logits)


@pytest.mark.parametrize("name", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_ways_to_name_a_checkpoint(name: str, tmp_path: Path) -> None:
    convert(str(TINY_BERT / name), tmp_path / "model")
    assert load_folder(tmp_path / "model").model.config.hidden_size == 8


def test_several_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    for file in list(checkpoint.glob("bert_model.ckpt.*")):
        shutil.copy(file, checkpoint / file.name.replace("bert_model.ckpt", "model.ckpt-500"))
    message = r"google: holds several checkpoints \(bert_model.ckpt.index, model.ckpt-500.index\); name one of them$"
    with pytest.raises(CheckpointError, match=message):
        convert(checkpoint, tmp_path / "model")
    convert(checkpoint / "model.ckpt-500", tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert_config.json", r"bert_config.json: cannot be read \(No such file or directory\)"),
        ("vocab.txt", "google: contains neither tokenizer.json nor vocab.txt; a model folder needs one of them"),
        ("bert_model.ckpt.data-00000-of-00001", "data-00000-of-00001: no such file, but it should contain '.*'"),
    ],
)
def test_missing_files(name: str, message: str, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=message):
        convert(checkpoint, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_missing_index(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "bert_model.ckpt.index").unlink()
    with pytest.raises(CheckpointError, match=r"google: not a model folder \(no config.json in it\)"):
        convert(checkpoint, tmp_path / "model")


@pytest.mark.parametrize(("word", "lowercase"), [("the", True), ("The", False), ("É", False), ("猫", True)])
def test_casing_is_guessed_from_the_vocabulary(word: str, lowercase: bool, checkpoint: Path, tmp_path: Path) -> None:
    """The casing is inferred from the vocabulary, ignoring tokens such as [CLS], which are always upper-case."""
    write_vocabulary(checkpoint / "vocab.txt", [*SPECIAL, word, *(f"w{index}" for index in range(26))])
    convert(checkpoint, tmp_path / "model")
    assert load_folder(tmp_path / "model").tokenizer.lowercase is lowercase
