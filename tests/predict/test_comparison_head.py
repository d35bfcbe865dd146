"""A head that compares separately encoded texts: every prediction method gives the logits of a reference."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torture.services import running
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from cloze.checkpoint import ModelFolder, TaskLabels, load_any, load_folder
from cloze.checkpoint.adapter_folder import save_adapter
from cloze.checkpoint.convert import convert
from cloze.checkpoint.folder import AdapterInfo, weights_fingerprint
from cloze.errors import CheckpointError, ConfigError, RequestError
from cloze.model.adapters import Attachment, attach
from cloze.model.batch import split_pairs
from cloze.model.cost import count_parameters
from cloze.predict import evaluate, load
from cloze.predict.loading import export_onnx
from cloze.predict.quantization.quantize import quantize
from cloze.serve.settings import ServiceSettings
from cloze.tasks.rows import Source
from cloze.train.distillation.settings import DistillSettings
from cloze.train.distillation.students import make_student
from tests.model.made import SMALL, model_folder, random_bert, saved

TEXTS = ["the cat sat on a mat.", "a dog", "the cats ran, the dog sat", "猫"]
PAIRS = ["a cat sat", "the dog ran on the mat, the cat sat on the dog", "a", "a dog"]
TASK = TaskLabels("classify", ("bad", "good"))
SEPARATE = replace(SMALL, head_pooling="separate")


def comparing_folder() -> ModelFolder:
    return model_folder(["sequence"], config=SEPARATE, task=TASK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(comparing_folder(), tmp_path / "comparing")


def reference(folder: Path, texts: list[str], pairs: list[str]) -> NDArray[np.float32]:
    """Compute vectors with sentence-transformers, their comparison with NumPy, and the linear layer."""
    encoder = SentenceTransformer(str(folder), device="cpu")
    first, second = (encoder.encode(some, normalize_embeddings=True) for some in (texts, pairs))
    scale = np.sqrt(first.shape[1])
    cosine = (first * second).sum(1, keepdims=True)
    first, second = first * scale, second * scale
    features = np.hstack([first, second, np.abs(first - second), first * second, cosine * scale])
    tensors = load_file(folder / "model.safetensors")
    logits: NDArray[np.float32] = features @ tensors["classifier.weight"].numpy().T + tensors["classifier.bias"].numpy()
    return logits


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probabilities: NDArray[np.float32] = powers / powers.sum(1, keepdims=True)
    return probabilities


def test_pairs_are_split_into_their_texts() -> None:
    ids = torch.tensor([[2, 5, 6, 3, 7, 3, 0], [2, 5, 3, 7, 8, 9, 3], [2, 5, 6, 7, 3, 0, 0]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    split, real = split_pairs(ids, segments, ids != 0, pad_id=0)
    assert split.tolist() == [
        *([2, 5, 6, 3, 0], [2, 5, 3, 0, 0], [2, 5, 6, 7, 3]),
        *([2, 7, 3, 0, 0], [2, 7, 8, 9, 3], [2, 0, 0, 0, 0]),
    ]
    assert torch.equal(real, split != 0)
    alone, real = split_pairs(ids[1:2], segments[1:2], None, pad_id=0)
    assert alone.tolist() == [[2, 5, 3, 0, 0], [2, 7, 8, 9, 3]]
    assert torch.equal(real, alone != 0)


def test_choice_is_in_the_folder_and_loaded_again(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text("utf-8"))
    assert (values["cloze_pooling"], values["cloze_head"]) == ("separate", "sequence")
    assert values["architectures"] == ["BertModel"]
    contents = load_folder(folder)
    assert contents.model.pooling == contents.model.config.head_pooling == "separate"
    assert contents.notes == ()
    assert not any("pooler" in name for name in load_file(folder / "model.safetensors"))
    assert contents.model.parameter_count() == count_parameters(contents.model.config, ["sequence"], labels=2)
    assert "the two texts of a pair are encoded separately" in (folder / "README.md").read_text("utf-8")


def test_logits_are_those_of_the_reference(folder: Path) -> None:
    expected = reference(folder, TEXTS, PAIRS)
    model = load(folder)
    np.testing.assert_allclose(model.logits(TEXTS, PAIRS), expected, atol=2e-5)
    np.testing.assert_allclose(model.logits(TEXTS[:1], PAIRS[:1]), expected[:1], atol=2e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.05, "pairs must differ for this to show anything"
    for answer, probabilities in zip(model.classify(TEXTS, PAIRS), softmax(expected), strict=True):
        assert answer.label == TASK.names[int(probabilities.argmax())]
        assert answer.probability == pytest.approx(float(probabilities.max()), abs=1e-5)


def test_single_texts_are_refused_but_embedded(folder: Path) -> None:
    model = load(folder)
    for method in (model.classify, model.logits, model.predict_rows):
        with pytest.raises(RequestError, match="this model compares the two texts of a pair; give a second text"):
            method(TEXTS)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS), theirs, atol=2e-5)


def test_transformers_loads_the_encoder_and_refuses_the_head(folder: Path) -> None:
    encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(TEXTS[0], return_tensors="pt")
    with torch.inference_mode():
        states = encoder(**encoded).last_hidden_state[0].numpy()
    np.testing.assert_allclose(load(folder).hidden(TEXTS[0]), states, atol=2e-5)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForSequenceClassification.from_pretrained(folder)


def test_evaluation_equals_the_reference(folder: Path, tmp_path: Path) -> None:
    labels = [TASK.names[index] for index in reference(folder, TEXTS, PAIRS).argmax(1)]
    rows = [
        {"text": text, "pair": pair, "label": label} for text, pair, label in zip(TEXTS, PAIRS, labels, strict=True)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert evaluate(load(folder), Source("classify", path, path, pair="pair")).metrics["accuracy"] == 1


def test_service_answers_the_same_and_refuses_single_texts(folder: Path) -> None:
    with running(ServiceSettings({"comparing": str(folder)})) as served:
        answers = served.post("/classify", {"texts": TEXTS, "pairs": PAIRS}).json()["results"]
        refused = served.post("/classify", {"texts": TEXTS})
    for answer, probabilities in zip(answers, softmax(reference(folder, TEXTS, PAIRS)), strict=True):
        assert answer["label"] == TASK.names[int(probabilities.argmax())]
    assert refused.status_code == 400
    assert "compares the two texts of a pair" in refused.text


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_fused_layers_are_near(folder: Path, precision: str) -> None:
    if precision == "int8":
        quantize(str(folder), TEXTS)
    found = load(folder, precision=precision).logits(TEXTS, PAIRS)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, reference(folder, TEXTS, PAIRS), atol=0.3)


def test_onnx_gives_the_logits(folder: Path, tmp_path: Path) -> None:
    graph = export_onnx(load_folder(folder), tmp_path / "onnx")
    encoded = AutoTokenizer.from_pretrained(folder)(TEXTS, PAIRS, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {name: array.astype(np.int64) for name, array in encoded.items()})[0]
    np.testing.assert_allclose(logits, reference(folder, TEXTS, PAIRS), atol=1e-4)


@pytest.mark.parametrize("way", [{"layers": 1}, {"preset": "tiny"}])
def test_students_compare_as_their_teacher(folder: Path, way: dict[str, object]) -> None:
    student = make_student(load_folder(folder), DistillSettings(**way))  # type: ignore[arg-type]
    assert student.pooling == "separate"


def test_student_of_an_ordinary_folder_compares_too(folder: Path, tmp_path: Path) -> None:
    base = saved(model_folder(["mlm"]), tmp_path / "base")
    assert make_student(load_folder(folder), DistillSettings(student=str(base))).pooling == "separate"


@pytest.mark.parametrize("kind", ["houlsby", "lora"])
def test_adapter_compares_on_a_base_with_a_pooler(kind: str, tmp_path: Path) -> None:
    base = saved(model_folder(["mlm", "nsp"]), tmp_path / "base")
    contents = load_folder(base)
    attachment = Attachment(kind, "sequence", 2, 4, pooling="separate")  # type: ignore[arg-type]
    attach(contents.model, attachment, seed=1)
    info = AdapterInfo(attachment, str(base), base, weights_fingerprint(base))
    save_adapter(replace(contents, task=TASK, adapter=info), tmp_path / "adapter")
    assert load_any(tmp_path / "adapter").model.pooling == "separate"
    if kind == "lora":  # a merged adapter is an ordinary model folder
        convert(tmp_path / "adapter", tmp_path / "merged")
        merged = load(tmp_path / "merged").logits(TEXTS, PAIRS)
        np.testing.assert_allclose(merged, load(tmp_path / "adapter").logits(TEXTS, PAIRS), atol=2e-5)
        np.testing.assert_allclose(merged, reference(tmp_path / "merged", TEXTS, PAIRS), atol=2e-5)


def test_head_of_another_width_is_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text("utf-8"))
    for pooling, message in (("cls", "were not used"), ("choice", "cloze_pooling is 'choice'")):
        (folder / "config.json").write_text(json.dumps(values | {"cloze_pooling": pooling}), "utf-8")
        if pooling == "cls":  # a model without a pooler has no head on [CLS]
            assert any(message in note for note in load_folder(folder).notes)
        else:
            with pytest.raises(CheckpointError, match=message):
                load_folder(folder)


def test_heads_that_cannot_compare_are_refused() -> None:
    with pytest.raises(ConfigError, match="head nsp: it uses the pooler, but head_pooling is 'separate'; use 'cls'"):
        random_bert(SEPARATE, ["nsp"])
    with pytest.raises(ConfigError, match="head choice: it encodes a prompt and an option together"):
        random_bert(SEPARATE, ["choice"])
