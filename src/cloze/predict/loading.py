"""Load a model for prediction (``cloze.load``), and export one as an ONNX graph for runtimes without PyTorch.

    inputs    input_ids, attention_mask, token_type_ids: int64, (B, T), for any B and T
    outputs   last_hidden_state (B, T, H), and logits if the model has a task head

Inputs and outputs of the graph have the same names as in other exporters. The tokenizer files are written next to it.

Dimensions: B sequences, T tokens, H hidden size.
"""

import logging
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint import ModelFolder, find_source, load_any
from cloze.errors import ConfigError
from cloze.files import replaced_folder
from cloze.hardware import choose_device
from cloze.model import Backbone, HeadName
from cloze.model.adapters import without_attachment
from cloze.model.heads import POOLED_HEADS, PRETRAINING_HEADS
from cloze.models import SHIPPED_MODEL
from cloze.options import PrecisionName
from cloze.predict.model import Model

logger = logging.getLogger("cloze")


def load(
    source: str | os.PathLike[str] = SHIPPED_MODEL,
    *,
    base: str | Path | None = None,
    device: str | None = None,
    precision: PrecisionName = "fp32",
) -> Model:
    """Load a model for prediction.

    Args:
        source: A model folder or run of cloze, a Hugging Face BERT folder, a TensorFlow checkpoint, the folder of an
            adapter, or a hub name; by default, the shipped model.
        base: The base model of an adapter, if it is no longer where the adapter was trained.
        device: cpu, cuda or mps; by default, the best available.
        precision: fp32 (same results as other libraries), bf16, int8, or auto (the fastest that is accurate enough).

    Returns:
        The model, ready to predict.

    Raises:
        CheckpointError: If the folder is missing, damaged or of an unsupported architecture.

    Example:
        >>> model = cloze.load()
        >>> model.heads
        ('mlm', 'nsp')
    """
    source = os.fspath(source)  # a ``FinetuneRun`` is a path, but prints as a table
    folder = load_any(find_source(source), base)
    for note in folder.notes:
        logger.warning("%s: %s", source, note)
    return Model(folder, device=device, precision=precision)


# -- export ------------------------------------------------------------------------------------------------------------


GRAPH = "model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Graph(nn.Module):
    """The exported computation: ids -> hidden states, and logits if there is a task head."""

    def __init__(self, bert: Backbone, head: HeadName | None) -> None:
        super().__init__()
        self.bert, self.head = bert, head

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        last = self.bert(ids, segments, mask.bool()).last
        if self.head is None:
            return (last,)
        head_input = self.bert.pooled(last, mask.bool()) if self.head in POOLED_HEADS else last
        logits = self.bert.heads[self.head](head_input)
        if self.head == "span":
            logits = torch.stack(logits, -1)  # (B, T, 2): start, end
        return last, logits


def export_onnx(contents: ModelFolder, out: Path, *, device: str | None = None) -> Path:
    """Write the graph and the tokenizer files to a folder.

    Args:
        contents: The model folder.
        out: The folder to write to.
        device: The device for tracing, by default the CPU. The graph itself runs on any device.

    Returns:
        The path of the graph.
    """
    place = choose_device(device or "cpu")
    try:
        import onnx
        import onnxscript  # noqa: F401 (the exporter needs it)
    except ImportError as error:
        raise ConfigError(
            "cloze export needs the onnx packages; install them with: pip install 'cloze-bert[onnx]'"
        ) from error
    bert = without_attachment(contents.model).eval().to(place)
    head = next((name for name in bert.head_names if name not in PRETRAINING_HEADS), None)
    names = ["last_hidden_state", *(["logits"] if head else [])]
    with replaced_folder(out) as folder:
        _export(_Graph(bert, head), names, bert.config.positions, folder / GRAPH)
        onnx.checker.check_model(str(folder / GRAPH))
        contents.tokenizer.save(folder)
    return out / GRAPH


def _export(graph: nn.Module, outputs: list[str], positions: int, path: Path) -> None:
    count, length = torch.export.Dim("sequences"), torch.export.Dim("tokens", max=positions)
    ids = torch.zeros(2, min(8, positions), dtype=torch.int64, device=next(graph.parameters()).device)
    # The exporter warns of optional packages that are not needed here.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():  # not inference mode, in which the encoder would pack tokens
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            str(path),
            input_names=list(INPUTS),
            output_names=outputs,
            dynamic_shapes=({0: count, 1: length},) * len(INPUTS),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
