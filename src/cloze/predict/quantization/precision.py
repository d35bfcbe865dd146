"""Inference precision: float32, or bfloat16 or int8 if they are faster.

Only the four matrix products of each layer change, which take most of the time; residual sums, LayerNorm and the heads
stay float32. The layers keep their float32 parameters for saving and adapters. Only architectures that declare
``fused_kernels`` support precisions other than float32.

Unless the user provides texts, precisions are compared on ordinary texts and on very short, unusual ones. The rounding
errors of tokens average out in the vector of a paragraph, but not in that of a single word, number or punctuation mark;
and a mark that is rare in the training text has the largest states of all. Words and characters are taken from the
model's vocabulary.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial

import torch
from torch import nn

from cloze.checkpoint import ModelFolder
from cloze.checkpoint.quantized_file import (
    Int8Weight,
    QuantizedFile,
    layer_products,
    read_quantized,
    require_fused_kernels,
)
from cloze.errors import CheckpointError, ClozeError, ConfigError, did_you_mean, format_option
from cloze.model import Backbone
from cloze.model.batch import collate
from cloze.options import PrecisionName
from cloze.predict.embeddings.pooling import VectorMaker, make_vectors
from cloze.predict.quantization.linear import (
    Bf16Linear,
    FrozenLinear,
    FusedLayers,
    Int8Linear,
    best_seconds,
    round_product,
    round_products,
)
from cloze.predict.quantization.native.kernels import NativeLayers, NativeLinear, ScriptedLayers, are_native
from cloze.text import Tokenizer
from cloze.text.boundaries import is_ideograph
from cloze.text.vocabulary import CONTINUATION

logger = logging.getLogger("cloze")

PRECISIONS: tuple[PrecisionName, ...] = ("auto", "fp32", "bf16", "int8")
# "auto" uses another precision if its vectors have at least this cosine similarity to those in float32.
LEAST_COSINE = 0.99
# "auto" compares these at every load before it uses bfloat16; models with over LARGE parameters compare fewer texts.
_COMPARED: tuple[PrecisionName, ...] = ("fp32", "bf16")
LARGE, _FEWEST_TEXTS = 50_000_000, 2


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether bfloat16 products are faster than float32 products on this device."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        # The instructions are not sufficient: without AMX tiles, float32 can be twice as fast as bfloat16.
        return torch.cpu._is_avx512_bf16_supported() and _bf16_is_faster()
    return False


@cache
def _bf16_is_faster() -> bool:
    plain = nn.Linear(512, 512)
    return _faster(Bf16Linear(plain), plain, torch.randn(512, 512))


def set_precision(folder: ModelFolder, name: PrecisionName, device: torch.device) -> None:
    """Switch the folder's model to a precision.

    Raises:
        ConfigError: If the name is unknown, or the precision is not available for this device or architecture.
    """
    if name not in PRECISIONS:
        raise ConfigError(f"unknown precision {name!r}{did_you_mean(name, PRECISIONS)}")
    if name == "int8" and device.type != "cpu":
        raise ConfigError(
            f"precision int8 only runs on the CPU, not on {device.type}; use bf16, or {format_option('device', 'cpu')}"
        )
    if not folder.model.fused_kernels:
        if name in ("bf16", "int8"):
            require_fused_kernels(folder.model, f"precision {name}")
        return  # models are loaded in fp32
    file = _read_rounded(folder, name) if name == "int8" or (name == "auto" and device.type == "cpu") else None
    if name == "auto":
        # int8 only if ``cloze quantize`` has measured its effect on this model.
        if file is None or file.least_cosine < LEAST_COSINE or not int8_is_faster(folder.model, device):
            use_without_int8(folder, device)
            return
        name = "int8"
    use_products(folder.model, name, {} if file is None else file.weights)


def use_without_int8(folder: ModelFolder, device: torch.device) -> None:
    """Switch to bfloat16 if it is faster and accurate enough, otherwise to float32."""
    if has_fast_bf16(device):
        _use_near_bf16(folder, device)
    else:
        use_products(folder.model, "fp32", {})


def int8_is_faster(bert: Backbone, device: torch.device) -> bool:
    """Return whether int8 is faster than the precision that ``auto`` would use otherwise."""
    return _is_faster("int8", "bf16" if has_fast_bf16(device) else "fp32", bert)


def _read_rounded(folder: ModelFolder, name: PrecisionName) -> QuantizedFile | None:
    """Return the int8 weights stored next to a model; with ``auto``, warn about a damaged file and return None."""
    try:
        return read_quantized(folder)
    except CheckpointError as error:
        if name == "int8":
            raise
        logger.warning("%s; auto does not use int8 until then", error)
        return None


def _use_near_bf16(folder: ModelFolder, device: torch.device) -> None:
    """Switch to bfloat16 if the vectors of a few texts stay close to those of float32, otherwise to float32."""
    bert, tokenizer = folder.model, folder.tokenizer
    is_large = sum(parameter.numel() for parameter in bert.parameters()) > LARGE
    texts = FEW_TEXTS[: _FEWEST_TEXTS if is_large else None]
    batch = collate([tokenizer(text) for text in texts], tokenizer.pad_id, device)
    make, vectors = _vector_maker(folder), []
    for name in _COMPARED:
        use_products(bert, name, {})
        with torch.inference_mode():
            vectors.append(make(bert.encode(batch.ids, batch.segments, batch.mask).last, batch))
    least = float(torch.cosine_similarity(vectors[0], vectors[1]).min())
    if least >= LEAST_COSINE:
        return
    logger.warning(
        "bf16 changes this model's vectors too much (cosine similarity to float32: %.4f, expected at least %s): "
        "float32 is used; %s selects bf16 anyway",
        least,
        LEAST_COSINE,
        format_option("precision", "bf16"),
    )
    use_products(bert, "fp32", {})


def _vector_maker(folder: ModelFolder) -> VectorMaker:
    """Return the folder's pooling, because whitening amplifies differences; mean pooling if it is unsupported."""
    try:
        return make_vectors(folder, None, last=True)
    except ClozeError:
        return make_vectors(folder, "mean", last=True)


def precision_of(bert: Backbone) -> PrecisionName:
    """Return the current precision of a model."""
    if not bert.fused_kernels:
        return "fp32"
    _, first = next(layer_products(bert))  # all products have the same precision
    if isinstance(first, Int8Linear | NativeLinear):
        return "int8"
    return "bf16" if isinstance(first, Bf16Linear) else "fp32"


def use_products(bert: Backbone, name: PrecisionName, weights: Mapping[str, Int8Weight]) -> None:
    """Replace the linear layers with those of a precision; ``weights`` are int8 weights from a file, if any."""
    if name == "fp32" and not bert.fused_kernels:
        return
    encoder = require_fused_kernels(bert, f"precision {name}").encoder
    for place, linear in list(layer_products(bert)):
        _put(bert, place, linear.plain() if isinstance(linear, FrozenLinear) else linear)
    if name == "int8" and not weights:
        weights = round_products(bert)
    native = name == "int8" and are_native(encoder)
    for place, linear in list(layer_products(bert)):
        _put(bert, place, _product(linear, name, place, weights.get(place), native=native))
    call = NativeLayers.of(encoder) or ScriptedLayers.of(encoder)
    encoder.fused_layers = None if call is None else FusedLayers(encoder, call)


def _put(bert: Backbone, place: str, linear: nn.Linear) -> None:
    parent, _, last = place.rpartition(".")
    setattr(bert.get_submodule(parent), last, linear)


def _product(
    plain: nn.Linear, name: PrecisionName, place: str, weight: Int8Weight | None = None, *, native: bool = False
) -> nn.Linear:
    if name == "int8":
        return (NativeLinear if native else Int8Linear)(plain, weight or round_product(place, plain))
    return Bf16Linear(plain) if name == "bf16" else plain


_MEASURED: dict[tuple[int, int, PrecisionName], bool] = {}


def _is_faster(name: PrecisionName, other: PrecisionName, bert: Backbone) -> bool:
    """Return whether one precision is faster than another at this model's shape; measured once per process."""
    shape = bert.config.hidden_size, bert.config.feedforward_size
    if (*shape, other) not in _MEASURED:
        plain = nn.Linear(*shape)
        native = are_native(bert.encoder)
        first, second = (_product(plain, kind, ".expand", native=native) for kind in (name, other))
        _MEASURED[*shape, other] = _faster(first, second, torch.randn(256, shape[0]))
    return _MEASURED[*shape, other]


def _faster(first: nn.Linear, second: nn.Linear, states: torch.Tensor) -> bool:
    one, other = best_seconds([partial(linear, states) for linear in (first, second)])
    return one < other


WORDS, CHARACTERS = 48, 24
NUMBERS = ("0", "7", "13", "100", "1999", "3.14", "1,000,000", "2024-02-29", "50 %", "1/2", "12:30", "1e-9")
SIGNS = (*".,;:?!-()[]/*&#@$%+=\"'_~|^<>\\", "...", "--", "—", "…", "«»", "“”", "。", "？", "！", "、")
# Written for this project.
CHINESE = (
    "今天早上下了一场大雨，路上的行人都撑着伞。",
    "他把书放回书架，轻轻地关上了门。",
    "这家小店的面条很好吃，价钱也不贵。",
    "火车晚点了二十分钟，大家只好在站台上等。",
    "老师说，学习语言最重要的是每天都读一点。",
    "奶奶在院子里种了许多花，春天的时候特别好看。",
    "会议改到星期三下午三点，请各位准时参加。",
    "孩子们在河边放风筝，笑声传得很远。",
    "医生建议他多休息，少喝咖啡。",
    "这座桥建于一百多年以前，现在仍然有人走。",
    "我昨天给你写了一封信，不知道你收到没有。",
    "天黑以后，山里的气温下降得很快。",
)
# A few texts of all kinds for a quick comparison; large models use only the first two.
FEW_TEXTS = (
    "The ship left the harbour before the sun was up.",
    "?",
    "1999",
    CHINESE[1],
    "word",
    "Über den Häusern: 3,14 %!",
)
# Fraction of the characters of CHINESE that a vocabulary needs to support Chinese, and fraction of Chinese pieces from
# which a vocabulary is considered Chinese instead of multilingual.
_READS_CHINESE, _IS_CHINESE = 0.9, 0.25


def running_texts(tokenizer: Tokenizer, paragraphs: Sequence[str]) -> dict[str, list[str]]:
    """Return ordinary texts by kind: the English paragraphs, Chinese sentences, or both, as the vocabulary allows."""
    texts: dict[str, list[str]] = {}
    mostly_chinese = is_chinese(tokenizer)
    if not mostly_chinese:
        texts["paragraphs"] = list(paragraphs)
    if mostly_chinese or reads_chinese(tokenizer):
        texts["Chinese sentences"] = [*CHINESE, *("".join(CHINESE[start : start + 4]) for start in range(0, 12, 4))]
    return texts


def odd_texts(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return very short texts by kind: single words and ideographs of the vocabulary, numbers, punctuation marks."""
    pieces = tokenizer.pieces
    words = [piece for piece in pieces if len(piece) > 1 and piece.isalpha() and not any(map(is_ideograph, piece))]
    characters = [piece for piece in pieces if len(piece) == 1 and is_ideograph(piece)]
    by_kind = {
        "single words": _spread(words, WORDS),
        "Chinese characters": _spread(characters, CHARACTERS),
        "numbers": list(NUMBERS),
        "signs": list(SIGNS),
    }
    return {kind: texts for kind, texts in by_kind.items() if texts}


def reads_chinese(tokenizer: Tokenizer) -> bool:
    """Return whether a vocabulary has the characters needed for Chinese text."""
    needed = set(filter(is_ideograph, "".join(CHINESE)))
    known = sum(tokenizer.id(character) is not None for character in needed)
    return known >= _READS_CHINESE * len(needed)


def is_chinese(tokenizer: Tokenizer) -> bool:
    """Return whether a vocabulary is Chinese instead of multilingual."""
    ideographic = sum(any(map(is_ideograph, piece.removeprefix(CONTINUATION))) for piece in tokenizer.pieces)
    return ideographic >= _IS_CHINESE * tokenizer.size


def _spread(pieces: Sequence[str], count: int) -> list[str]:
    """Sample evenly from first to last, because vocabularies are sorted by frequency or alphabetically."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[number * (len(pieces) - 1) // (count - 1)] for number in range(count)]
