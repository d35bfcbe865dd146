"""Compare a pre-training step of each backbone with a step of its implementation in ``transformers``.

    python benchmarks/backbones.py [--backbones deberta,xlnet,electra] [--rounds N] [--threads N] [--precision bf16]

Both train the same architecture of size mini on the same random batch of full sentences: forward and backward pass,
clipping and AdamW, with dropout. Rounds alternate between the two in one process. The figure is the ratio of the median
processor times, which other work on the machine disturbs less than wall-clock times, with the smallest and largest
ratio of a round; measure with one thread. The peer gets what its interface accepts: labels at all positions
for a masked language model, a mask and a target mapping for XLNet, and for ELECTRA a generator and a discriminator
between which we draw the words. Our DeBERTa includes the enhanced mask decoder, which the peer does not have.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers

from cloze.corpus.batches import PretrainingBatch
from cloze.hardware import keep_freed_memory
from cloze.model import preset
from cloze.model.config import generator_config
from cloze.options import BackboneName
from cloze.train.optimization import make_optimizer
from cloze.train.pretraining.objectives import OBJECTIVES, backbone_class
from cloze.train.pretraining.objectives.relatives import draw_words, original_ids, random_ranks
from cloze.train.settings import PretrainSettings, read_recipe

SIZES = {"vocab_size": 8192, "rows": 32, "length": 128}
SHARES = {"deberta": 0.15, "xlnet": 1 / 6, "electra": 0.15}
IGNORED = -100
PEER: Any = transformers


def make_batch(name: str) -> PretrainingBatch:
    """Return a batch without padding, with the share of predicted tokens of the backbone."""
    generator = np.random.default_rng(1)
    rows, length = SIZES["rows"], SIZES["length"]
    ids = generator.integers(5, SIZES["vocab_size"], (rows, length))
    chosen = np.stack([1 + generator.permutation(length - 2)[: round(SHARES[name] * length)] for _ in range(rows)])
    positions = np.sort((chosen + length * np.arange(rows)[:, None]).reshape(-1))
    targets = ids.reshape(-1)[positions].copy()
    ids.reshape(-1)[positions] = 4
    none = np.zeros(0, np.int64)
    lengths = np.full(rows, length)
    fates = np.zeros(len(positions), np.uint8)
    units = np.stack([positions, np.ones_like(positions)], 1)
    return PretrainingBatch(ids, np.zeros_like(ids), lengths, positions, targets, none, None, fates, units)


def our_step(name: BackboneName, batch: PretrainingBatch, bf16: bool) -> Callable[[], None]:
    """Return a training step of cloze."""
    settings = PretrainSettings(preset="mini", **read_recipe(name))
    kind = backbone_class(name)
    config = kind.config_type(**vars(preset("mini", SIZES["vocab_size"])))
    model = kind.fresh(config, OBJECTIVES[name].heads(settings))
    objective = OBJECTIVES[name].create(model, settings, torch.device("cpu")).train()

    def loss() -> Any:
        return objective(batch, batch.counts).loss

    return _step(objective, loss, bf16)


def their_step(name: str, batch: PretrainingBatch, bf16: bool) -> Callable[[], None]:
    """Return a training step of transformers."""
    ids, originals = torch.from_numpy(batch.ids), torch.from_numpy(original_ids(batch))
    positions, targets = torch.from_numpy(batch.positions), torch.from_numpy(batch.targets)
    labels = torch.full(ids.shape, IGNORED).flatten().index_copy(0, positions, targets).view(ids.shape)
    config = preset("mini", SIZES["vocab_size"])
    if name == "deberta":
        model = PEER.DebertaForMaskedLM(
            PEER.DebertaConfig(**_sizes(config), relative_attention=True, pos_att_type=["c2p", "p2c"],
                               position_biased_input=False, type_vocab_size=2)
        )  # fmt: skip
        return _step(model.train(), lambda: model(ids, labels=labels).loss, bf16)
    if name == "xlnet":
        return _xlnet_step(batch, originals, bf16)
    generator = PEER.ElectraForMaskedLM(
        PEER.ElectraConfig(**_sizes(generator_config(config, 0.25)), embedding_size=config.hidden_size)
    )
    discriminator = PEER.ElectraForPreTraining(PEER.ElectraConfig(**_sizes(config), embedding_size=config.hidden_size))
    generator.electra.embeddings = discriminator.electra.embeddings  # shared, as in the paper
    both = torch.nn.ModuleList([generator, discriminator]).train()

    def loss() -> Any:
        first = generator(ids, labels=labels)
        words = draw_words(first.logits.detach().flatten(0, 1)[positions], seed=1)
        shown = originals.flatten().index_copy(0, positions, words).view_as(originals)
        return first.loss + 50 * discriminator(shown, labels=(shown != originals).long()).loss

    return _step(both, loss, bf16)


def _xlnet_step(batch: PretrainingBatch, originals: torch.Tensor, bf16: bool) -> Callable[[], None]:
    config = preset("mini", SIZES["vocab_size"])
    model = PEER.XLNetLMHeadModel(
        PEER.XLNetConfig(vocab_size=config.vocab_size, d_model=config.hidden_size, n_layer=config.layers,
                         n_head=config.heads, d_inner=config.feedforward_size, mem_len=None)
    ).train()  # fmt: skip
    ranks = torch.from_numpy(random_ranks(batch))
    hidden = ((ranks[:, None] >= ranks[:, :, None]) & (ranks[:, None] > 0)).float()
    rows, length = originals.shape
    places = torch.from_numpy(batch.positions).view(rows, -1) % length  # (B, P)
    mapping = torch.nn.functional.one_hot(places, length).float()
    labels = originals.gather(1, places)
    return _step(
        model,
        lambda: model(originals, perm_mask=hidden, target_mapping=mapping, labels=labels, use_mems=False).loss,
        bf16,
    )


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feedforward_size,
        "max_position_embeddings": config.positions,
    }


def _step(module: torch.nn.Module, loss: Callable[[], Any], bf16: bool) -> Callable[[], None]:
    optimizer = make_optimizer(module, 5e-4, 0.01)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    return step


def compare(name: BackboneName, rounds: int, bf16: bool) -> tuple[float, float, list[float]]:
    """Return the median seconds of our step and of theirs, and the ratio of each round."""
    batch = make_batch(name)
    ours, theirs = our_step(name, replace(batch), bf16), their_step(name, batch, bf16)
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(rounds + 1):
        for side, step in (("ours", ours), ("theirs", theirs)):
            start = time.process_time()
            step()
            if number:  # the first round warms up
                times[side].append(time.process_time() - start)
    ratios = [other / own for own, other in zip(times["ours"], times["theirs"], strict=True)]
    return statistics.median(times["ours"]), statistics.median(times["theirs"]), ratios


def main() -> None:
    """Print one row per backbone."""
    parser = argparse.ArgumentParser(description="Compare pre-training steps with transformers.")
    parser.add_argument("--backbones", default="deberta,xlnet,electra")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of both")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    print(f"{'backbone':<10} {'cloze ms':>9} {'transformers ms':>16}  ratio (smallest to largest of a round)")
    for name in arguments.backbones.split(","):
        ours, theirs, ratios = compare(name, arguments.rounds, arguments.precision == "bf16")
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:<10} {1000 * ours:9.0f} {1000 * theirs:16.0f}  {theirs / ours:.2f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
