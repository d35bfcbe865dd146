"""Train for retrieval with cloze and with sentence-transformers: the same losses, and the time of a step.

    OMP_NUM_THREADS=1 python benchmarks/retrieval_training.py --steps 30

Both train MiniLM on the same batches of SQuAD's questions and paragraphs (``MultipleNegativesRankingLoss``, scale 20)
without dropout, with the same optimizer, schedule and clipping, in float32. The steps alternate. Times are seconds of
processor time in one thread, which other processes on the machine influence less than seconds on the clock; the steps
of sentence-transformers include tokenization, as in its trainer. ``bf16`` is what cloze chooses where it is faster.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cloze.checkpoint import load_folder
from cloze.model.surgery import with_heads
from cloze.predict.embeddings.pooling import find_pool
from cloze.progress import Silent
from cloze.tasks.retrieval.kind import TrainingPairs
from cloze.train.finetuning.contrastive import ContrastiveBatches, ContrastiveObjective, default_chunk_tokens
from cloze.train.finetuning.retriever import encode_rows
from cloze.train.optimization import Schedule, make_optimizer, set_rate
from cloze.train.settings import LoopSettings
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/
from retrieval_quality import read_articles  # module in benchmarks/


def read_pairs(data: Path, count: int) -> TrainingPairs:
    """Return the first question of each paragraph."""
    path = find_data(data, "squad/du-split-test-v1.1.json") / "squad/du-split-test-v1.1.json"
    articles = read_articles(path)
    firsts = {context: question for article in articles for question, context in reversed(article)}
    contexts, questions = list(firsts)[:count], list(firsts.values())[:count]
    return TrainingPairs(questions, contexts, [()] * len(contexts), places=contexts)


class Trainer:
    """A model with its optimizer; each step computes a loss, clips the gradients and updates the weights."""

    def __init__(self, module: torch.nn.Module, settings: LoopSettings) -> None:
        self.module, self._settings = module, settings
        self._optimizer = make_optimizer(module, settings.learning_rate, settings.weight_decay)
        self._schedule = Schedule.of(settings)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, number: int, compute: Callable[[], torch.Tensor]) -> None:
        """Run one step."""
        start = time.process_time()
        self._optimizer.zero_grad()
        loss = compute()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._settings.clip)
        set_rate(self._optimizer, self._schedule.rate(number, 0.0))
        self._optimizer.step()
        self.seconds.append(time.process_time() - start)
        self.losses.append(float(loss.detach()))


def their_model(length: int) -> Any:
    """Return MiniLM in sentence-transformers, without dropout."""
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(minilm()), device="cpu")
    model.max_seq_length = length
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model[0].auto_model.config.attention_probs_dropout_prob = 0.0
    return model.train()


def our_objective() -> tuple[ContrastiveObjective, Any]:
    """Return MiniLM in cloze, without dropout, and its tokenizer."""
    base = load_folder(minilm())
    model = with_heads(base.model, (), keep=False, seed=0, dropout=0.0)
    objective = ContrastiveObjective(model, find_pool("mean", model, base.tokenizer), 0.05)
    return objective.train(), base


def main() -> None:
    """Parse the arguments, train both, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=128)
    arguments = parser.parse_args()
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    pairs = read_pairs(arguments.data, arguments.steps * arguments.batch_size)
    steps = min(arguments.steps, -(-len(pairs) // arguments.batch_size))
    settings = LoopSettings(steps=steps, learning_rate=5e-5)
    (objective, base), (fast, _), theirs = our_objective(), our_objective(), their_model(arguments.max_length)
    tokenizer = base.tokenizer.with_max_length(arguments.max_length)
    rows = encode_rows(pairs, tokenizer, base.embedding, Silent())
    chunk = default_chunk_tokens(objective.model)
    batches = ContrastiveBatches(rows, arguments.batch_size, 0, chunk, 0, tokenizer.pad_id, torch.device("cpu"))
    loss = MultipleNegativesRankingLoss(theirs, scale=20.0)
    trainers = {"cloze": Trainer(objective, settings), "cloze, bf16": Trainer(fast, settings)}
    trainers["sentence-transformers"] = Trainer(theirs, settings)
    places = {int(query): place for place, query in enumerate(rows.queries)}
    for step in range(steps):
        batch = batches.at(step)
        chosen = [places[int(rows.queries[row])] for row in batches.batch_rows(step)]
        columns = [[column[place] for place in chosen] for column in (pairs.queries, pairs.positives)]

        def ours(trained: Any = None, *, bf16: bool = False) -> torch.Tensor:
            again = batches.at(step)  # noqa: B023 (called within the step); collating is part of a step
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                found: torch.Tensor = (trained or objective)(again, again.counts).loss
                return found

        def peer() -> torch.Tensor:
            found: torch.Tensor = loss([theirs.preprocess(column) for column in columns], None)  # noqa: B023
            return found

        runs: list[tuple[str, Callable[[], torch.Tensor]]] = [
            ("cloze", ours),
            ("cloze, bf16", lambda: ours(fast, bf16=True)),
            ("sentence-transformers", peer),
        ]
        for name, compute in runs[step % 3 :] + runs[: step % 3]:
            trainers[name].step(step, compute)
        if step % 5 == 4 or step + 1 == steps:
            report(trainers, batch.token_count)


def report(trainers: dict[str, Trainer], tokens: int) -> None:
    """Print the times and the largest difference of the losses so far."""
    peer = trainers["sentence-transformers"]
    differences = [abs(one - other) for one, other in zip(trainers["cloze"].losses, peer.losses, strict=True)]
    print(f"{len(differences)} steps (about {tokens} tokens): largest difference of losses {max(differences):.1e}")
    print("training\tseconds per step\tspeedup\tlast loss")
    for name, trainer in trainers.items():
        print(
            f"{name}\t{median(trainer.seconds):.2f}\t{median(peer.seconds) / median(trainer.seconds):.2f} x", end="\t"
        )
        print(f"{trainer.losses[-1]:.5f}", flush=True)


def median(values: Sequence[float]) -> float:
    """Return the median of the steps after the first, which allocates memory."""
    return statistics.median(values[1:] or values)


if __name__ == "__main__":
    main()
