"""No fused, packed or int8 path computes anything but the layers of the backbone: equal outputs, or a refusal."""

from pathlib import Path

import numpy as np
import pytest
import torch

import cloze
from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import ConfigError
from cloze.model import preset
from cloze.model.backbone import find_backbone, registered_types
from cloze.options import PrecisionName
from cloze.predict.quantization.quantize import quantize
from cloze.text import Tokenizer

WORDS = ("winter", "garden", "house", "river", "stone", "cloud", "bread", "night")
TEXTS = ["winter house", "garden river stone cloud bread night", "night", "stone stone stone"]
REDUCED: tuple[PrecisionName, ...] = ("int8", "bf16")


@pytest.fixture(scope="module", params=[name for name in registered_types() if name != "electra"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model of every registered architecture; an ELECTRA discriminator is a BERT with another head."""
    backbone = find_backbone(request.param)
    assert backbone is not None
    shape = preset(
        "tiny",
        len(WORDS) + 5,
        layers=1 if request.param == "static" else 2,
        hidden_size=64,
        heads=2,
        initial_deviation=0.2,
    )
    values = vars(shape) | ({"embedding_size": 16} if request.param == "albert" else {})
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
    path = tmp_path_factory.mktemp(request.param) / "model"
    model = backbone.fresh(backbone.config_type(**values), seed=1)
    assert model.model_type == request.param
    save_folder(ModelFolder(model, tokenizer), path)
    return path


def test_the_type_is_kept(folder: Path) -> None:
    loaded = load_folder(folder).model
    assert loaded.model_type in folder.parent.name
    assert type(loaded) is find_backbone(loaded.model_type)


@torch.no_grad()
def test_packed_and_padded_states_are_those_of_single_sequences(folder: Path) -> None:
    model = cloze.load(folder)
    rows = [model.tokenizer(text).ids for text in TEXTS]
    width = max(map(len, rows))
    ids = torch.tensor([row + [model.tokenizer.pad_id] * (width - len(row)) for row in rows])
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    segments = torch.zeros_like(ids)
    packed = model.bert.encode(ids, segments, mask, keep_states=True)
    with torch.enable_grad():
        padded = model.bert.encode(ids, segments, mask, keep_states=True)
    some = mask.flatten().nonzero().flatten()[::2].contiguous()
    needed = model.bert.encode(ids, segments, mask, needed=some).last.flatten(0, 1)[some]
    torch.testing.assert_close(needed, packed.last.flatten(0, 1)[some], atol=1e-5, rtol=1e-5)
    for number, row in enumerate(rows):
        alone = model.bert.encode(torch.tensor([row]), segments[:1, : len(row)], keep_states=True)
        for output in (packed, padded):
            for state, expected in zip(output.states, alone.states, strict=True):
                torch.testing.assert_close(state[number, : len(row)], expected[0], atol=1e-5, rtol=1e-5)


def test_reduced_precision_is_close_or_refused(folder: Path) -> None:
    plain = cloze.load(folder)
    vectors = plain.embed(TEXTS, pooling="mean")
    np.testing.assert_allclose(
        vectors, np.concatenate([plain.embed([text], pooling="mean") for text in TEXTS]), atol=1e-5
    )
    for name in REDUCED:
        if plain.bert.capabilities.fused_kernels:
            reduced = cloze.load(folder, precision=name).embed(TEXTS, pooling="mean")
            cosines = (reduced * vectors).sum(1) / np.linalg.norm(reduced, axis=1) / np.linalg.norm(vectors, axis=1)
            assert cosines.min() > 0.99
        else:
            with pytest.raises(ConfigError, match=f"precision {name} is not implemented for models of type"):
                cloze.load(folder, precision=name)
    if not plain.bert.capabilities.fused_kernels:
        with pytest.raises(ConfigError, match="quantization is not implemented for models of type"):
            quantize(folder, TEXTS)
    automatic = cloze.load(folder, precision="auto")
    if not plain.bert.capabilities.fused_kernels:
        assert automatic.precision == "fp32"
        np.testing.assert_array_equal(automatic.embed(TEXTS, pooling="mean"), vectors)
        encoder = getattr(automatic.bert, "encoder", None)
        assert getattr(encoder, "fused_layers", None) is None
