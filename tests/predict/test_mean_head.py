"""A head on the mean of the token states: every prediction method gives the logits of a reference."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torture.services import running
from transformers import AutoModel, AutoTokenizer

from cloze.checkpoint import ModelFolder, TaskLabels, load_any, load_folder, save_folder
from cloze.checkpoint.adapter_folder import save_adapter
from cloze.checkpoint.convert import convert
from cloze.checkpoint.folder import AdapterInfo, usual_pooling, weights_fingerprint
from cloze.checkpoint.pooling_files import EmbeddingSettings
from cloze.errors import CheckpointError, ConfigError
from cloze.model import HeadName
from cloze.model.adapters import Attachment, attach
from cloze.predict import evaluate, load
from cloze.predict.loading import export_onnx
from cloze.predict.quantization.quantize import quantize
from cloze.serve.settings import ServiceSettings
from cloze.tasks.rows import Source
from cloze.train.distillation.settings import DistillSettings
from cloze.train.distillation.students import make_student
from tests.model.made import SMALL, model_folder, random_bert, saved

TEXTS = ["the cat sat on a mat.", "a dog", "the cats ran, the dog sat", "猫"]
TASK = TaskLabels("classify", ("bad", "good"))
MEAN = replace(SMALL, head_pooling="mean")


def mean_folder(head: HeadName = "sequence", task: TaskLabels = TASK) -> ModelFolder:
    return model_folder([head], config=MEAN, task=task)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(mean_folder(), tmp_path / "mean")


def reference(folder: Path, texts: list[str]) -> NDArray[np.float32]:
    """Compute the encoder with transformers, the mean over real tokens, and the Dense module's linear layer."""
    encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    dense = load_file(folder / "2_Dense" / "model.safetensors")
    with torch.inference_mode():
        states = encoder(**encoded).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).float()
        means = (states * weights).sum(1) / weights.sum(1)
        logits: NDArray[np.float32] = (means @ dense["linear.weight"].T + dense["linear.bias"]).numpy()
    return logits


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probabilities: NDArray[np.float32] = powers / powers.sum(1, keepdims=True)
    return probabilities


def test_choice_is_in_the_folder_and_loaded_again(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text("utf-8"))
    assert (values["cloze_pooling"], values["cloze_head"]) == ("mean", "sequence")
    assert values["architectures"] == ["BertModel"]  # transformers has no class with such a head
    contents = load_folder(folder)
    assert contents.model.pooling == "mean"
    assert contents.model.config.head_pooling == usual_pooling(contents) == "mean"
    assert contents.notes == ()
    assert not any("pooler" in name for name in load_file(folder / "model.safetensors"))


def test_logits_are_those_of_the_reference(folder: Path) -> None:
    expected = reference(folder, TEXTS)
    model = load(folder)
    np.testing.assert_allclose(model.logits(TEXTS), expected, atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.05, "texts must differ for this to show anything"
    for answer, probabilities in zip(model.classify(TEXTS), softmax(expected), strict=True):
        assert answer.label == TASK.names[int(probabilities.argmax())]
        assert answer.probability == pytest.approx(float(probabilities.max()), abs=1e-5)


def test_sentence_transformers_give_the_logits(folder: Path) -> None:
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, load(folder).logits(TEXTS), atol=1e-5)


def test_evaluation_equals_the_reference(folder: Path, tmp_path: Path) -> None:
    labels = [TASK.names[index] for index in reference(folder, TEXTS).argmax(1)]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert evaluate(load(folder), Source("classify", path, path)).metrics["accuracy"] == 1


def test_service_answers_the_same(folder: Path) -> None:
    with running(ServiceSettings({"mean": str(folder)})) as served:
        answers = served.post("/classify", {"texts": TEXTS}).json()["results"]
    for answer, probabilities in zip(answers, softmax(reference(folder, TEXTS)), strict=True):
        assert answer["label"] == TASK.names[int(probabilities.argmax())]


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_fused_layers_are_near(folder: Path, precision: str) -> None:
    if precision == "int8":
        quantize(str(folder), TEXTS)
    found = load(folder, precision=precision).logits(TEXTS)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, reference(folder, TEXTS), atol=0.15)


def test_quantized_copy_keeps_the_head(folder: Path, tmp_path: Path) -> None:
    quantize(str(folder), TEXTS, out=tmp_path / "copy")
    np.testing.assert_allclose(load(tmp_path / "copy", precision="fp32").logits(TEXTS), load(folder).logits(TEXTS))


def test_onnx_gives_the_logits(folder: Path, tmp_path: Path) -> None:
    graph = export_onnx(load_folder(folder), tmp_path / "onnx")
    encoded = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {name: array.astype(np.int64) for name, array in encoded.items()})[0]
    np.testing.assert_allclose(logits, reference(folder, TEXTS), atol=1e-4)


def test_choices_are_scored_by_the_mean(tmp_path: Path) -> None:
    contents = mean_folder("choice", TaskLabels("choose"))
    contents = replace(contents, model=random_bert(MEAN, ["choice"], labels=1))
    folder = saved(contents, tmp_path / "choice")
    assert json.loads((folder / "config.json").read_text("utf-8"))["cloze_head"] == "choice"
    scores = reference(folder, TEXTS)
    assert scores.shape == (len(TEXTS), 1)
    loaded = load_folder(folder)
    assert loaded.model.head_names == ("choice",)
    outputs: list[Any] = [model.heads["choice"].output for model in (loaded.model, contents.model)]
    assert torch.equal(outputs[0].weight, outputs[1].weight)


@pytest.mark.parametrize("way", [{"layers": 1}, {"preset": "tiny"}])
def test_students_read_as_their_teacher(folder: Path, way: dict[str, object]) -> None:
    student = make_student(load_folder(folder), DistillSettings(**way))  # type: ignore[arg-type]
    assert student.pooling == "mean"
    assert student.pooler is None


@pytest.mark.parametrize("kind", ["houlsby", "lora"])
def test_adapter_reads_the_mean_on_a_base_with_a_pooler(kind: str, tmp_path: Path) -> None:
    base = saved(model_folder(["mlm", "nsp"]), tmp_path / "base")
    contents = load_folder(base)
    attachment = Attachment(kind, "sequence", 2, 4, pooling="mean")  # type: ignore[arg-type]
    attach(contents.model, attachment, seed=1)
    info = AdapterInfo(attachment, str(base), base, weights_fingerprint(base))
    save_adapter(replace(contents, task=TASK, adapter=info), tmp_path / "adapter")
    loaded = load_any(tmp_path / "adapter")
    assert loaded.model.pooling == "mean"
    last = contents.model.eval()(torch.tensor([[2, 5, 6, 3]]), torch.zeros(1, 4, dtype=torch.long)).last
    expected = contents.model.heads["sequence"](last.mean(1))
    torch.testing.assert_close(contents.model.heads["sequence"](contents.model.pooled(last, None)), expected)
    if kind == "lora":  # a merged adapter is an ordinary model folder
        convert(tmp_path / "adapter", tmp_path / "merged")
        np.testing.assert_allclose(
            load(tmp_path / "merged").logits(TEXTS), load(tmp_path / "adapter").logits(TEXTS), atol=1e-5
        )
        np.testing.assert_allclose(
            reference(tmp_path / "merged", TEXTS), load(tmp_path / "merged").logits(TEXTS), atol=1e-5
        )


def test_folder_without_the_dense_module_is_refused(folder: Path) -> None:
    (folder / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"head mean-pools the token states, but modules\.json has no"):
        load_folder(folder)


def test_unknown_pooling_is_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(values | {"cloze_pooling": "max"}), "utf-8")
    with pytest.raises(CheckpointError, match="cloze_pooling is 'max'; expected one of cls, mean, separate"):
        load_folder(folder)


def test_vectors_that_the_dense_module_would_change_are_refused(tmp_path: Path) -> None:
    contents = replace(mean_folder(), embedding=EmbeddingSettings("max"))
    with pytest.raises(CheckpointError, match="so its vectors cannot have whitening or another pooling"):
        save_folder(contents, tmp_path / "folder")


def test_next_sentence_head_reads_a_pooler_only() -> None:
    with pytest.raises(ConfigError, match="head nsp: it uses the pooler, but head_pooling is 'mean'; use 'cls'"):
        random_bert(MEAN, ["nsp"])


def test_usual_pooling_of_folders(tmp_path: Path, minilm_folder: Path) -> None:
    assert usual_pooling(load_folder(minilm_folder)) == "mean"
    # cloze writes modules.json into every folder; a head trained on the pooler takes precedence.
    assert usual_pooling(load_folder(saved(model_folder(["mlm", "nsp"]), tmp_path / "nsp"))) == "cls"
    assert usual_pooling(load_folder(saved(model_folder(["sequence"]), tmp_path / "task"))) == "cls"
    assert usual_pooling(load_folder(saved(model_folder(["mlm"]), tmp_path / "mlm"))) == "mean"
    pooler = saved(model_folder(pooler=True), tmp_path / "pooler")
    assert usual_pooling(load_folder(pooler)) == "mean"
    (pooler / "modules.json").unlink()
    assert usual_pooling(load_folder(pooler)) == "cls"
