"""Int8 engines that ``inference.py`` compares with: CTranslate2, OpenVINO with NNCF, and llama.cpp.

Each function takes a model folder in the Hugging Face layout and batch sizes, converts the model to the engine's own
int8 format, and returns functions that embed texts: mean pooling over all tokens, vectors of length 1. They raise
ImportError if a package is missing: ``pip install ctranslate2 openvino nncf gguf llama-cpp-python``.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import load_folder

Floats = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]

MAX_LENGTH = 256
CALIBRATION_TEXTS = 128
LLAMA_CONTEXT = 512


def pool(states: NDArray[Any], mask: NDArray[Any]) -> Floats:
    """Average the token states and normalize: (B, T, H), (B, T) -> (B, H)."""
    vectors = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def sort_into_batches(encode: Callable[[list[str]], Floats], size: int) -> Embed:
    """Return a function that embeds texts in batches of similar length, as sentence-transformers does."""

    def embed(texts: Sequence[str]) -> Floats:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        parts = [encode([texts[index] for index in order[at : at + size]]) for at in range(0, len(order), size)]
        vectors = np.concatenate(parts)
        restored = np.empty_like(vectors)
        restored[order] = vectors
        return restored

    return embed


def ctranslate2_peers(folder: Path, batches: Sequence[int], texts: Sequence[str]) -> dict[str, Embed]:  # noqa: ARG001
    """Return CTranslate2 with int8 weights; its batches have no padding inside the engine."""
    import ctranslate2
    from transformers import AutoTokenizer

    converted = folder / "ctranslate2"
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        ctranslate2.converters.TransformersConverter(str(folder)).convert(
            str(converted), quantization="int8", force=True
        )
    threads = torch.get_num_threads()
    encoder = ctranslate2.Encoder(
        str(converted), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
    )
    tokenizer = AutoTokenizer.from_pretrained(str(folder))

    def encode(batch: list[str]) -> Floats:
        ids = tokenizer(batch, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        states = np.array(encoder.forward_batch(ids).last_hidden_state)
        lengths = np.array([len(row) for row in ids])
        return pool(states, (np.arange(states.shape[1]) < lengths[:, None]).astype(np.float32))

    return {f"ctranslate2 int8, batch {size}": sort_into_batches(encode, size) for size in batches}


def openvino_peers(folder: Path, batches: Sequence[int], texts: Sequence[str]) -> dict[str, Embed]:
    """Return OpenVINO after NNCF's post-training quantization, calibrated on some of the texts."""
    import nncf
    import openvino
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))

    def tensors(batch: list[str]) -> dict[str, NDArray[Any]]:
        return dict(tokenizer(batch, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="np"))

    core = openvino.Core()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        quantized = nncf.quantize(
            core.read_model(str(folder / "plain.onnx")),
            nncf.Dataset([tensors([text]) for text in texts[:CALIBRATION_TEXTS]]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=CALIBRATION_TEXTS,
        )
    hints = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(quantized, "CPU", hints)

    def encode(batch: list[str]) -> Floats:
        inputs = tensors(batch)
        return pool(compiled(inputs)[0], inputs["attention_mask"])

    return {f"openvino int8 (NNCF), batch {size}": sort_into_batches(encode, size) for size in batches}


def llama_peers(folder: Path, batches: Sequence[int], texts: Sequence[str]) -> dict[str, Embed]:  # noqa: ARG001
    """Return llama.cpp with Q8_0 weights; it packs texts into batches of tokens itself."""
    import llama_cpp

    path = folder / "q8_0.gguf"
    write_gguf(folder, path)
    threads = torch.get_num_threads()
    peers: dict[str, Embed] = {}
    for size in batches:
        model = llama_cpp.Llama(
            str(path),
            embedding=True,
            n_ctx=LLAMA_CONTEXT * size,
            n_batch=LLAMA_CONTEXT * size,
            n_ubatch=LLAMA_CONTEXT * size,
            n_seq_max=size,
            n_threads=threads,
            n_threads_batch=threads,
            pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN,
            verbose=False,
        )

        def encode(batch: list[str], model: Any = model) -> Floats:
            return np.asarray(model.embed(batch, normalize=True), np.float32)

        peers[f"llama.cpp Q8_0, batch {size}"] = sort_into_batches(encode, size)
    return peers


def write_gguf(folder: Path, path: Path) -> None:
    """Write a BERT folder as GGUF with Q8_0 matrices and float32 vectors."""
    import gguf

    contents = load_folder(folder)
    config, tokenizer = contents.model.config, contents.tokenizer
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.feedforward_size)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(config.norm_epsilon)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("bert")
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    writer.add_token_list([_gguf_piece(piece) for piece in pieces])
    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    types = [gguf.TokenType.CONTROL if piece in control else gguf.TokenType.NORMAL for piece in pieces]
    writer.add_token_types(types)
    writer.add_token_type_count(config.segments)
    for name, add in (
        ("[CLS]", writer.add_bos_token_id),
        ("[SEP]", writer.add_sep_token_id),
        ("[UNK]", writer.add_unk_token_id),
        ("[PAD]", writer.add_pad_token_id),
        ("[MASK]", writer.add_mask_token_id),
    ):
        add(int(tokenizer.id(name) or 0))
    for name, values in _gguf_tensors(folder):
        if values.ndim == 2 and values.shape[1] % 32 == 0 and "position" not in name and "token_types" not in name:
            data = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_piece(piece: str) -> str:
    """Return a WordPiece in GGUF's notation, which marks word starts instead of continuations."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece[2:] if piece.startswith("##") else "\u2581" + piece


def _gguf_tensors(folder: Path) -> list[tuple[str, Floats]]:
    """Return the encoder's weights under GGUF's names."""
    from transformers import AutoModel

    names = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    }
    tensors = []
    for name, tensor in AutoModel.from_pretrained(str(folder), dtype=torch.float32).state_dict().items():
        stem, _, kind = name.rpartition(".")
        prefix = ""
        if stem.startswith("encoder.layer."):
            number, _, stem = stem.removeprefix("encoder.layer.").partition(".")
            prefix = f"blk.{number}."
        if stem in names:
            tensors.append((f"{prefix}{names[stem]}.{kind}", tensor.numpy()))
    return tensors


INT8_PEERS = {"ctranslate2": ctranslate2_peers, "openvino int8": openvino_peers, "llama.cpp": llama_peers}

if __name__ == "__main__":
    sys.exit("this is a part of inference.py, which compares with these engines")
