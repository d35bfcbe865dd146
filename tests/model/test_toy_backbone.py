"""A new architecture needs one class and one registration; its declarations determine everything else."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError, RequestError
from cloze.model import Backbone, Bert, BertConfig, Capabilities, EncoderOutput, register_backbone
from cloze.model.adapters import Attachment, attach
from cloze.model.backbone import unregister_backbone
from cloze.model.encoder import Encoder
from cloze.model.surgery import prune_heads, with_positions
from cloze.options import PrecisionName
from cloze.predict import load
from cloze.predict.quantization import precision
from cloze.predict.quantization.native import kernels
from cloze.predict.quantization.quantize import quantize
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings

WORDS = ("winter", "garden", "house", "river", "stone", "cloud", "bread", "night")
TEXTS = ["winter house", "garden river stone cloud bread", "night"]


@dataclass(frozen=True)
class ToyConfig(BertConfig):
    """The common sizes, and one field that only this architecture has."""

    directions: int = 1


class Toy(Backbone):
    """A left-to-right GRU over token embeddings for any length; its summary is the last state."""

    model_types = ("toy-gru",)
    config_type = ToyConfig
    capabilities = Capabilities(bidirectional=False, has_positions=False, summary="last")

    def build(self, config: BertConfig) -> None:
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_id)
        self.recurrent = nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)

    def encode(
        self,
        ids: Tensor,
        segments: Tensor,
        mask: Tensor | None = None,
        *,
        needed: Tensor | None = None,
        keep_states: bool = False,
        keep_attentions: bool = False,
    ) -> EncoderOutput:
        embedded = self.tokens(ids)
        last, _ = self.recurrent(embedded)
        return EncoderOutput(last, (embedded, last) if keep_states else ())

    @property
    def token_table(self) -> nn.Embedding:
        return self.tokens


class ToyMean(Toy):
    """The same model with the mean of the states as its summary."""

    model_types = ("toy-mean",)
    capabilities = Capabilities(bidirectional=False, has_positions=False, summary="mean")


CONFIG = ToyConfig(
    vocab_size=len(WORDS) + 5, hidden_size=16, layers=1, heads=1, feedforward_size=4, positions=8, directions=3
)


@pytest.fixture(autouse=True, params=[Toy, ToyMean], ids=["last", "mean"])
def toy(request: pytest.FixtureRequest) -> Iterator[type[Backbone]]:
    """Register the architecture."""
    yield register_backbone(request.param)
    unregister_backbone(request.param)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make BERT's layers fail, fused or not."""

    def poison(*_: Any, **__: Any) -> Any:
        raise AssertionError("a path of BERT's layers was taken")

    monkeypatch.setattr(Encoder, "forward", poison)
    for module, name in ((kernels, "layers_of"), (precision, "are_native")):
        monkeypatch.setattr(module, name, poison)


@pytest.fixture
def model(toy: type[Backbone]) -> Backbone:
    return toy.fresh(CONFIG, seed=1)


@pytest.fixture
def folder(model: Backbone, tmp_path: Path) -> Path:
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
    save_folder(ModelFolder(model, tokenizer), tmp_path / "base")
    return tmp_path / "base"


def test_heads_read_the_declared_summary(toy: type[Backbone]) -> None:
    model = toy.fresh(CONFIG, ["sequence"], labels=3)
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]])
    mask = ids.ne(0)
    needed = model.needed_by("sequence", ids, mask)
    last = model(ids, torch.zeros_like(ids), mask, needed).last
    if toy is Toy:
        assert needed is not None
        assert needed.tolist() == [4, 7]
        expected = torch.stack([last[0, 4], last[1, 2]])
    else:
        assert needed is None
        expected = torch.stack([last[0].mean(0), last[1, :3].mean(0)])
    torch.testing.assert_close(model.summarise(last, mask), expected)
    assert model.heads["sequence"](model.pooled(last, mask)).shape == (2, 3)


def test_a_folder_is_restored(folder: Path, model: Backbone) -> None:
    loaded = load_folder(folder).model
    assert type(loaded) is type(model)
    assert loaded.config == CONFIG
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_finetuned_saved_loaded_and_queried(folder: Path, tmp_path: Path, toy: type[Backbone]) -> None:
    rows = [(f"{WORDS[2 + number % 6]} {WORDS[number % 2]}", WORDS[number % 2]) for number in range(32)]
    for name in ("train", "dev"):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    settings = FinetuneSettings(epochs=20, batch_size=8, max_length=16, learning_rate=2e-2, dropout=0.0)
    source = Source("classify", tmp_path / "train.csv", tmp_path / "dev.csv")
    tuned = load(run_finetuning(source, folder, tmp_path / "run", settings=settings))
    assert type(tuned.bert) is toy
    assert [found.label for found in tuned.classify(["stone winter", "night garden"])] == ["winter", "garden"]


def test_texts_are_embedded_whatever_their_neighbours(folder: Path) -> None:
    loaded = load(folder, precision="auto")
    assert loaded.precision == "fp32"
    vectors = loaded.embed(TEXTS)
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(vectors, np.concatenate([loaded.embed([text]) for text in TEXTS]), atol=1e-6)
    assert loaded.hidden("winter house", layer=0).shape == (4, 16)


def test_no_positions_means_no_limit_by_them(folder: Path) -> None:
    assert load(folder).hidden(" ".join(WORDS * 4)).shape == (34, 16)  # the configuration has only 8 positions


def test_undeclared_capabilities_are_rejected(folder: Path, model: Backbone) -> None:
    names: tuple[PrecisionName, ...] = ("int8", "bf16")
    for name in names:
        with pytest.raises(ConfigError, match=f"precision {name} is not implemented for models of type 'toy-"):
            load(folder, precision=name)
    with pytest.raises(ConfigError, match="quantization is not implemented for models of type 'toy-"):
        quantize(folder, TEXTS)
    with pytest.raises(RequestError, match="has no attention weights"):
        load(folder).attend("winter")
    with pytest.raises(ConfigError, match="predicts masked words from both sides"):
        type(model)(CONFIG, ["mlm"])
    with pytest.raises(ConfigError, match="an adapter of kind lora requires BERT's layers"):
        attach(model, Attachment("lora", "sequence", 2, 4), seed=0)
    with pytest.raises(ConfigError, match="pruning attention heads requires BERT's layers"):
        prune_heads(model, [(0, 0)])
    with pytest.raises(ConfigError, match="adding positions requires BERT's layers"):
        with_positions(model, 16)


def test_a_folder_of_an_unknown_type_is_refused(folder: Path, toy: type[Backbone]) -> None:
    unregister_backbone(toy)
    with pytest.raises(
        CheckpointError, match=r"model_type is 'toy-.*'; only 'bert', 'albert', .*and 'ernie' folders are supported"
    ):
        load_folder(folder)


def test_more_layers_than_tensors_are_rejected_before_building(folder: Path) -> None:
    contents = load_folder(folder)
    contents.model.config = replace(CONFIG, layers=10_000)
    save_folder(contents, folder)
    with pytest.raises(CheckpointError, match="requires 10000 layers"):
        load_folder(folder)


def test_declarations_are_not_inherited() -> None:
    class Relative(Bert):
        """An unregistered subclass, which must not run through kernels for BERT's layers."""

    with pytest.raises(ConfigError, match="Relative: a backbone must declare its own capabilities"):
        register_backbone(Relative)


def test_a_model_type_is_registered_once() -> None:
    class Other(Toy):
        model_types = ("bert",)
        capabilities = Toy.capabilities

    with pytest.raises(ConfigError, match="'bert' is already registered as Bert"):
        register_backbone(Other)
