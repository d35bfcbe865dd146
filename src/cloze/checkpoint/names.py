"""Convert parameter names between cloze, Hugging Face folders and Google's TensorFlow checkpoints.

Model folders use Hugging Face names, which differ between BERT and ALBERT. One difference from cloze is more than a
name: query, key and value are one matrix in cloze and three in the folder. Architectures without a table in this module
are saved with the names of cloze (layout "native").
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cloze.errors import CheckpointError
from cloze.model import HeadName

# Naming scheme of a folder, which follows from "model_type" in its config.json.
Layout = Literal["bert", "gpt", "albert", "electra", "deberta", "deberta-v2", "xlnet", "native"]
# Prefix of the tensors below the heads; absent in the folder of a bare encoder.
_BASES: dict[Layout, str] = {
    "bert": "bert.",
    "gpt": "bert.",
    "albert": "albert.",
    "electra": "electra.",
    "deberta": "deberta.",
    "deberta-v2": "deberta.",
    "xlnet": "transformer.",
}

_BERT_LAYER = {
    "attention.output.": "attention.output.dense.",
    "attention.distance.": "attention.self.distance_embedding.",
    "attention_norm.": "attention.output.LayerNorm.",
    "expand.": "intermediate.dense.",
    "contract.": "output.dense.",
    "feedforward_norm.": "output.LayerNorm.",
}
# Ordered so that a prefix never shadows a longer one.
_LAYER_PARTS: dict[Layout, dict[str, str]] = {
    "bert": _BERT_LAYER,
    "electra": _BERT_LAYER,
    "deberta": _BERT_LAYER
    | {
        "attention.query_bias": "attention.self.q_bias",
        "attention.value_bias": "attention.self.v_bias",
        "attention.position_key.": "attention.self.pos_proj.",
        "attention.position_query.": "attention.self.pos_q_proj.",
    },
    "deberta-v2": _BERT_LAYER
    | {
        "attention.position_key.": "attention.self.pos_key_proj.",
        "attention.position_query.": "attention.self.pos_query_proj.",
    },
    "xlnet": {
        "attention.output": "rel_attn.o",
        "attention.position_key": "rel_attn.r",
        "attention.content_bias": "rel_attn.r_w_bias",
        "attention.position_bias": "rel_attn.r_r_bias",
        "attention.segment_bias": "rel_attn.r_s_bias",
        "attention.segments": "rel_attn.seg_embed",
        "attention_norm.": "rel_attn.layer_norm.",
        "expand.": "ff.layer_1.",
        "contract.": "ff.layer_2.",
        "feedforward_norm.": "ff.layer_norm.",
    },
    "albert": {
        "attention.output.": "attention.dense.",
        "attention_norm.": "attention.LayerNorm.",
        "expand.": "ffn.",
        "contract.": "ffn_output.",
        "feedforward_norm.": "full_layer_layer_norm.",
    },
}
_TABLES = {
    "encoder.embeddings.token.": "embeddings.word_embeddings.",
    "encoder.embeddings.segment.": "embeddings.token_type_embeddings.",
    "encoder.embeddings.position.": "embeddings.position_embeddings.",
    "encoder.embeddings.norm.": "embeddings.LayerNorm.",
}
_TASK_HEADS = {
    "heads.sequence.output.": "classifier.",
    "heads.token.output.": "classifier.",
    "heads.choice.output.": "classifier.",
    "heads.span.output.": "qa_outputs.",
    "heads.rtd.dense.": "discriminator_predictions.dense.",
    "heads.rtd.output.": "discriminator_predictions.dense_prediction.",
    # These heads exist only in cloze.
    "heads.sbo.": "sbo.",
    "heads.relation.": "relation.",
}
_BERT_HEADS = {
    "heads.mlm.dense.": "cls.predictions.transform.dense.",
    "heads.mlm.norm.": "cls.predictions.transform.LayerNorm.",
    "heads.mlm.bias": "cls.predictions.bias",
    "heads.nsp.output.": "cls.seq_relationship.",
    "heads.sop.output.": "cls.seq_relationship.",
    **_TASK_HEADS,
}
_DEBERTA = {
    **{ours: f"deberta.{theirs}" for ours, theirs in _TABLES.items()},
    "encoder.distances.table.": "deberta.encoder.rel_embeddings.",
    "encoder.distances.norm.": "deberta.encoder.LayerNorm.",
    "pooler.": "pooler.",  # not below the prefix
    **_BERT_HEADS,
}
_PARTS: dict[Layout, dict[str, str]] = {
    "bert": {
        **{ours: f"bert.{theirs}" for ours, theirs in _TABLES.items()},
        "pooler.dense.": "bert.pooler.dense.",
        **_BERT_HEADS,
    },
    "electra": {
        **{ours: f"electra.{theirs}" for ours, theirs in _TABLES.items()},
        "encoder.embeddings.to_hidden.": "electra.embeddings_project.",
        "heads.mlm.dense.": "generator_predictions.dense.",
        "heads.mlm.norm.": "generator_predictions.LayerNorm.",
        "heads.mlm.bias": "generator_lm_head.bias",
        "pooler.dense.": "electra.pooler.dense.",  # only in cloze
        **{ours: theirs for ours, theirs in _BERT_HEADS.items() if "mlm" not in ours},
    },
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "xlnet": {
        "encoder.token.": "transformer.word_embedding.",
        "encoder.query": "transformer.mask_emb",
        "pooler.dense.": "sequence_summary.summary.",
        **_BERT_HEADS,
        "heads.mlm.bias": "lm_loss.bias",
        "heads.sequence.output.": "logits_proj.",
        "heads.choice.output.": "logits_proj.",
    },
    "albert": {
        **{ours: f"albert.{theirs}" for ours, theirs in _TABLES.items()},
        "encoder.embeddings.to_hidden.": "albert.encoder.embedding_hidden_mapping_in.",
        "pooler.dense.": "albert.pooler.",
        "heads.mlm.dense.": "predictions.dense.",
        "heads.mlm.norm.": "predictions.LayerNorm.",
        "heads.mlm.bias": "predictions.bias",
        "heads.nsp.output.": "sop_classifier.classifier.",
        "heads.sop.output.": "sop_classifier.classifier.",
        **_TASK_HEADS,
    },
}
# A GPT has BERT's names, except for the modules on its summary: transformers would apply them to the first token.
_LAYER_PARTS["gpt"] = _LAYER_PARTS["bert"]
_PARTS["gpt"] = {
    **{ours: theirs for ours, theirs in _PARTS["bert"].items() if not ours.startswith(("pooler.", "heads.mlm."))},
    **{name.replace("mlm", "lm"): theirs for name, theirs in _PARTS["bert"].items() if name.startswith("heads.mlm.")},
    "pooler.dense.": "summary.dense.",
    "heads.sequence.output.": "summary.classifier.",
    "heads.choice.output.": "summary.choice.",
}
# ALBERT's layers are in groups; here, each group has one layer.
_LAYER_PREFIX: dict[Layout, str] = {
    "bert": "bert.encoder.layer.{}.",
    "gpt": "bert.encoder.layer.{}.",
    "electra": "electra.encoder.layer.{}.",
    "deberta": "deberta.encoder.layer.{}.",
    "deberta-v2": "deberta.encoder.layer.{}.",
    "xlnet": "transformer.layer.{}.",
    "albert": "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
}
# The tensors of the query, key and value projections, which are one matrix in cloze.
_BERT_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value")
_ATTENTION: dict[Layout, tuple[str, ...]] = {
    "bert": _BERT_ATTENTION,
    "gpt": _BERT_ATTENTION,
    "electra": _BERT_ATTENTION,
    "albert": ("attention.query", "attention.key", "attention.value"),
    "deberta": ("attention.self.in_proj",),
    "deberta-v2": ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
    "xlnet": ("rel_attn.q", "rel_attn.k", "rel_attn.v"),
}
# Copies of other tensors that some libraries save as well.
COPIES: dict[Layout, dict[str, str]] = {
    **{
        layout: {
            "cls.predictions.decoder.weight": f"{_BASES[layout]}embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
        for layout in ("bert", "deberta", "deberta-v2")
    },
    "electra": {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    "xlnet": {"lm_loss.weight": "transformer.word_embedding.weight"},
    "albert": {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    "native": {},
}
COPIES["gpt"] = COPIES["bert"]
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")
_FUSED = "attention.query_key_value"


def layout_of(model_type: str) -> Layout:
    """Return the layout of parameter names for a model type."""
    return next((layout for layout in _BASES if layout == model_type), "native")


def hugging_face_names(name: str, layout: Layout = "bert") -> tuple[str, ...]:
    """Return the name, or the three names, of a parameter in a Hugging Face folder."""
    if layout == "native":
        return (name,)
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return (_replace_prefix(name, _PARTS[layout]),)
    prefix, rest = layer_prefix(int(layer[1]), layout), layer[2]
    if rest.startswith(_FUSED):
        suffix = rest.removeprefix(_FUSED)
        return tuple(f"{prefix}{part}{suffix}" for part in _ATTENTION[layout])
    return (prefix + _replace_prefix(rest, _LAYER_PARTS[layout]),)


def layer_prefix(number: int, layout: Layout) -> str:
    """Return the common prefix of all names of a layer."""
    return _LAYER_PREFIX[layout].format(number)


def _replace_prefix(name: str, table: Mapping[str, str]) -> str:
    for ours, theirs in table.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)


def to_hugging_face(state: Mapping[str, Tensor], layout: Layout = "bert") -> dict[str, Tensor]:
    """Rename a state dictionary for saving. As in Hugging Face folders, a bare encoder has no ``bert.`` prefix.

    Nor has a discriminator: then the classes of BERT and of ELECTRA in ``transformers`` both load it.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = hugging_face_names(name, layout)
        renamed |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    if layout != "native" and not any(re.match(r"heads\.(?!rtd\.)", name) for name in state):
        renamed = {name.removeprefix(_BASES[layout]): tensor for name, tensor in renamed.items()}
    return {name: tensor.contiguous() for name, tensor in sorted(renamed.items())}


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return a parameter from its one or three tensors on disk."""
    parts = list(tensors)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


# First parts of the names in the folder of a bare encoder.
_BARE: dict[Layout, tuple[str, ...]] = {
    "bert": ("embeddings.", "encoder.", "pooler."),
    "gpt": ("embeddings.", "encoder.", "pooler."),
    "albert": ("embeddings.", "encoder.", "pooler."),
    "electra": ("embeddings.", "embeddings_project.", "encoder.", "pooler."),
    "deberta": ("embeddings.", "encoder."),
    "deberta-v2": ("embeddings.", "encoder."),
    "xlnet": ("word_embedding.", "mask_emb", "layer."),
}


def normalised(name: str, layout: Layout = "bert") -> str:
    """Return the current Hugging Face name of a tensor with an old name or without the prefix of a bare encoder."""
    name = re.sub(r"\.LayerNorm\.gamma$", ".LayerNorm.weight", name)
    name = re.sub(r"\.LayerNorm\.beta$", ".LayerNorm.bias", name)
    if layout in ("deberta", "deberta-v2"):  # the newer head of its masked language model
        name = name.replace("lm_predictions.lm_head.", "cls.predictions.transform.")
        name = name.replace("cls.predictions.transform.bias", "cls.predictions.bias")
    if layout != "native" and name.startswith(_BARE[layout]):
        name = _BASES[layout] + name
    return name


# Class names of transformers start with these.
_FAMILIES: dict[Layout, str] = {
    "bert": "Bert",
    "albert": "Albert",
    "electra": "Electra",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "xlnet": "XLNet",
}

# Several kinds of heads have tensors named "classifier"; the class that saved the folder identifies the kind.
HEAD_CLASSES: dict[str, HeadName] = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForMultipleChoice": "choice",
    "ForQuestionAnswering": "span",
}


def class_name(heads: tuple[HeadName, ...], layout: Layout) -> str:
    """Return the class of ``transformers`` for a folder with these heads."""
    if layout == "gpt":
        return _gpt_class_name(heads)
    family = _FAMILIES[layout]
    for kind, head in HEAD_CLASSES.items():
        if head in heads:
            return family + kind + ("Simple" if (layout, head) == ("xlnet", "span") else "")
    if layout == "xlnet":
        return family + ("LMHeadModel" if "mlm" in heads else "Model")
    if layout == "electra" and "rtd" in heads:
        return family + "ForPreTraining"
    if not {"nsp", "sop"} & set(heads):
        return family + ("ForMaskedLM" if "mlm" in heads else "Model")
    # transformers has no ALBERT class for a sentence head without a masked-LM head.
    return family + ("ForPreTraining" if "mlm" in heads or layout == "albert" else "ForNextSentencePrediction")


def _gpt_class_name(heads: tuple[HeadName, ...]) -> str:
    """Return the class that computes the same; ``transformers`` pools the first token, so not for pooled heads."""
    classes: dict[HeadName, str] = {
        "lm": "BertLMHeadModel",
        "token": "BertForTokenClassification",
        "span": "BertForQuestionAnswering",
    }
    return next((name for head, name in classes.items() if head in heads), "BertModel")


_ERNIE = "ernie"
_TASK_TYPES = "ernie.embeddings.task_type_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"


def as_bert(values: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert an ERNIE (Sun et al. 2019) to a BERT: only the prefix of its tensors differs in ``transformers``.

    Later versions add a task embedding to every token. Outside of pre-training, only its first row is used, so this row
    is added to the position embeddings, which gives the same sums.
    """
    if values.get("model_type") != _ERNIE:
        return values, tensors
    names = values.get("architectures")
    classes = [str(name).replace("Ernie", "Bert", 1) for name in names] if isinstance(names, list) else []
    prefixed = {
        f"{_ERNIE}.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name: tensor
        for name, tensor in tensors.items()
    }
    task_types = prefixed.pop(_TASK_TYPES, None)
    renamed = {re.sub(rf"^{_ERNIE}\.", "bert.", name): tensor for name, tensor in prefixed.items()}
    if values.get("use_task_id"):
        positions = renamed.get(_POSITIONS)
        if (
            task_types is None
            or positions is None
            or task_types.ndim != 2
            or task_types.shape[1:] != positions.shape[1:]
        ):
            raise CheckpointError(
                f"{path}: use_task_id is {values['use_task_id']!r}, but {_TASK_TYPES} is missing or has the wrong "
                f"size; "
                "fetch the folder again"
            )
        renamed[_POSITIONS] = positions + task_types[0]
    return {**values, "model_type": "bert", "architectures": classes}, renamed


# Endings of Google's variables. A dense kernel is (in, out) there and (out, in) here. The matrices of the output
# layers, which the original code multiplies explicitly, are already (out, in).
_TENSORFLOW_ENDINGS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
    "word_embeddings": "word_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
}


def from_tensorflow(name: str) -> tuple[str, bool]:
    """Return the Hugging Face name of a variable in a Google checkpoint, and whether to transpose its matrix."""
    # The output layer of run_classifier.py is at the root, that of run_squad.py is under cls/squad.
    path = f"classifier/{name}" if name.startswith("output_") else name.replace("cls/squad/", "qa_outputs/")
    path = re.sub(r"/layer_(\d+)/", r"/layer/\1/", path)
    *parents, last = path.split("/")
    return ".".join([*parents, _TENSORFLOW_ENDINGS.get(last, last)]), last == "kernel"
