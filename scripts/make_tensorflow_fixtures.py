"""Write the TensorFlow checkpoints that the tests of the bundle reader use, with TensorFlow itself.

TensorFlow is not a dependency of cloze, so run this script in a separate environment, from the root of the
repository:

    python3.11 -m venv /tmp/tensorflow-environment
    /tmp/tensorflow-environment/bin/pip install tensorflow-cpu
    /tmp/tensorflow-environment/bin/python scripts/make_tensorflow_fixtures.py

Each folder under ``tests/checkpoint/fixtures/tensorflow`` gets a checkpoint and ``expected.npz``, which contains
the tensors that TensorFlow's own reader returns (bfloat16 as float32, because NumPy has no bfloat16):

    tiny_bert     a two-layer BERT with exactly the names of Google's release, plus variables left over from fine-tuning
    mixed_types   every supported type, two unsupported types, a scalar and an empty tensor
    two_shards    two data files under one index
    partitioned   a variable that is saved in two slices
    many_blocks   an index of several blocks; TensorFlow fills 256 KB before it starts another, hence the .xz
"""

import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy
import tensorflow as tf

FIXTURES = Path("tests/checkpoint/fixtures/tensorflow")

TINY_BERT: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 32,
}
VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog bird sat ran flew on in mat house tree "
    "and to . , ? ! ##s ##ed ##ing ##er small big old new"
)


def main() -> None:
    """Write all folders again."""
    assert len(VOCABULARY.split()) == TINY_BERT["vocab_size"]
    make_tiny_bert(fresh_folder("tiny_bert"))
    make_mixed_types(fresh_folder("mixed_types"))
    make_two_shards(fresh_folder("two_shards"))
    make_partitioned(fresh_folder("partitioned"))
    make_many_blocks(fresh_folder("many_blocks"))


def fresh_folder(name: str) -> Path:
    """Return an empty folder for one checkpoint."""
    folder = FIXTURES / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def make_tiny_bert(folder: Path) -> None:
    """Save a BERT as Google did: in graph mode with a Saver, next to its configuration and vocabulary."""
    generator = numpy.random.default_rng(1)
    prefix = folder / "bert_model.ckpt"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in bert_shapes().items():
            values = generator.normal(0, 0.2, shape).astype(numpy.float32)
            if name.endswith("LayerNorm/gamma"):
                values += 1
            if name.endswith("adam_v"):
                values **= 2
            tf.compat.v1.get_variable(name, initializer=values)
        tf.compat.v1.get_variable("global_step", initializer=numpy.int64(1000), trainable=False)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(prefix), write_meta_graph=False, write_state=False)
    (folder / "bert_config.json").write_text(json.dumps(TINY_BERT, indent=2) + "\n")
    (folder / "vocab.txt").write_text(VOCABULARY.replace(" ", "\n") + "\n")
    write_expected(folder, prefix)


def bert_shapes() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a pre-trained BERT's variables, and one variable's Adam slots."""
    hidden, inner, vocabulary = (
        TINY_BERT["hidden_size"],
        TINY_BERT["intermediate_size"],
        TINY_BERT["vocab_size"],
    )

    def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}/LayerNorm/beta": (hidden,), f"{name}/LayerNorm/gamma": (hidden,)}

    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (vocabulary, hidden),
        "bert/embeddings/token_type_embeddings": (TINY_BERT["type_vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (TINY_BERT["max_position_embeddings"], hidden),
        **norm("bert/embeddings"),
    }
    for number in range(TINY_BERT["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}/attention/self/{part}", hidden, hidden)
        shapes |= dense(f"{layer}/attention/output/dense", hidden, hidden) | norm(f"{layer}/attention/output")
        shapes |= dense(f"{layer}/intermediate/dense", hidden, inner)
        shapes |= dense(f"{layer}/output/dense", inner, hidden) | norm(f"{layer}/output")
    shapes |= dense("bert/pooler/dense", hidden, hidden)
    shapes |= {"cls/predictions/output_bias": (vocabulary,)}
    shapes |= dense("cls/predictions/transform/dense", hidden, hidden) | norm("cls/predictions/transform")
    shapes |= {"cls/seq_relationship/output_weights": (2, hidden), "cls/seq_relationship/output_bias": (2,)}
    slots = "bert/encoder/layer_0/output/dense/kernel"
    return shapes | {f"{slots}/adam_m": (inner, hidden), f"{slots}/adam_v": (inner, hidden)}


def make_mixed_types(folder: Path) -> None:
    """Save one tensor of each type, a scalar and an empty tensor."""
    generator = numpy.random.default_rng(2)
    tensors = {
        kind: tf.cast(generator.normal(0, 1000, (3, 5)), getattr(tf, kind))
        for kind in ("float16", "bfloat16", "float32", "float64", "int32", "int64")
    }
    tensors["bool"] = tf.constant(generator.random((3, 5)) < 0.5)
    tensors["scalar"] = tf.constant(2.5, tf.float32)
    tensors["empty"] = tf.zeros((0, 4), tf.float32)
    tensors["string"] = tf.constant(["not", "numbers"])
    tensors["uint8"] = tf.constant([1, 2, 3], tf.uint8)
    save(folder / "mixed.ckpt", tensors)
    write_expected(folder, folder / "mixed.ckpt", leave_out=("string", "uint8"))


def make_two_shards(folder: Path) -> None:
    """Save two bundles and let TensorFlow merge their indexes, as it does for a distributed model."""
    parts = {"first": tf.range(10, dtype=tf.float32), "second": tf.range(7, dtype=tf.int32)}
    prefixes = [str(folder / f"part_{name}") for name in parts]
    for prefix, (name, tensor) in zip(prefixes, parts.items(), strict=True):
        save(Path(prefix), {name: tensor})
    merged = folder / "sharded.ckpt"
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=str(merged), delete_old_dirs=False)
    write_expected(folder, merged)


def make_partitioned(folder: Path) -> None:
    """Save the upper and the lower half of a matrix as slices, together with a whole vector."""
    matrix = tf.reshape(tf.range(24, dtype=tf.float32), (4, 6))
    tf.raw_ops.SaveV2(
        prefix=str(folder / "sliced.ckpt"),
        tensor_names=["matrix", "matrix", "vector"],
        shape_and_slices=["4 6 0,2:0,6", "4 6 2,2:0,6", ""],
        tensors=[matrix[:2], matrix[2:], tf.range(3, dtype=tf.float32)],
    )
    write_expected(folder, folder / "sliced.ckpt")


def make_many_blocks(folder: Path) -> None:
    """Save 1,400 scalars whose long names fill more than one block of the index."""
    tensors = {f"{number:04d}/" + "name" * 100: tf.constant(number, tf.int32) for number in range(1400)}
    with tempfile.TemporaryDirectory() as scratch:
        save(Path(scratch) / "many.ckpt", tensors)
        for file in Path(scratch).iterdir():
            (folder / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=9))


def save(prefix: Path, tensors: dict[str, tf.Tensor]) -> None:
    """Save whole tensors under the given names."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def write_expected(folder: Path, prefix: Path, leave_out: tuple[str, ...] = ()) -> None:
    """Write the tensors that TensorFlow itself reads back."""
    reader = tf.train.load_checkpoint(str(prefix))
    arrays = {}
    for name, kind in reader.get_variable_to_dtype_map().items():
        if name not in leave_out:
            values = reader.get_tensor(name)
            arrays[name] = values.astype(numpy.float32) if kind == tf.bfloat16 else values
    with (folder / "expected.npz").open("wb") as file:
        numpy.savez(file, **dict(sorted(arrays.items())))


if __name__ == "__main__":
    main()
