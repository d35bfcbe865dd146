"""Predict hidden tokens in held-out books: a model compared with a Kneser-Ney 5-gram over the same pieces.

    python benchmarks/blanks.py --model cloze-mini --corpus runs/mini/data --text runs/mini/held_out.txt --seed 1

Each blank is one hidden token in a window of held-out text. The model sees the whole window. The 5-gram, counted on the
model's training corpus, sees the four tokens before the blank, or four on either side, combined by the chain rule over
the whole vocabulary. Prints top-1 and top-5 accuracy with 95 % confidence intervals, for all blanks and for those that
start a word, then the paired difference between the model and the 5-gram in percentage points.

Blanks from one document, and even more from one window, are correlated, so the intervals are clustered by document, or
by window if there are few documents. Each seed hides different tokens; report a seed that was not used in development.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import t as student

from cloze.checkpoint import find_source, load_folder
from cloze.corpus.documents import read_documents
from cloze.corpus.shards import Corpus
from cloze.model.losses import masked_word_logits
from cloze.text import Tokenizer
from kneser_ney import Ints, KneserNey  # module in benchmarks/

WINDOW = 126
SIDE = 4
# With fewer documents, the variance between documents cannot be estimated reliably.
LEAST_GROUPS = 30


@dataclass(frozen=True)
class Blank:
    """A window of tokens, and the position of the hidden token."""

    tokens: Ints
    place: int
    document: int = 0
    window: int = 0

    @property
    def answer(self) -> int:
        """Return the hidden token."""
        return int(self.tokens[self.place])


def make_blanks(text: Path, tokenizer: Tokenizer, count: int, seed: int = 0) -> list[Blank]:
    """Draw windows from the text, each with one hidden token at least four tokens from either end.

    If there are fewer windows than blanks, windows are reused with different positions.
    """
    documents = ["\n".join(document) for document in read_documents([text])]
    windows = [
        (np.asarray(ids[start : start + WINDOW], dtype=np.int64), number)
        for number, ids in enumerate(tokenizer.encode_ids(documents))
        for start in range(0, len(ids) - WINDOW + 1, WINDOW)
    ]
    generator = np.random.default_rng(seed)
    rounds = -(-count // len(windows))
    chosen = np.concatenate([generator.permutation(len(windows)) for _ in range(rounds)])[:count]
    places = [int(generator.integers(SIDE, WINDOW - SIDE)) for _ in chosen]
    return [
        Blank(windows[index][0], place, document=windows[index][1], window=index)
        for index, place in zip(chosen.tolist(), places, strict=True)
    ]


def model_ranks(folder: Path, blanks: list[Blank]) -> list[int]:
    """Return for each blank the number of tokens that the model scores higher than the hidden one."""
    loaded = load_folder(folder)
    bert, tokenizer = loaded.model.eval(), loaded.tokenizer
    ranks: list[int] = []
    with torch.inference_mode():
        for group in _groups(blanks, 32):
            ids = np.asarray([[tokenizer.cls_id, *blank.tokens, tokenizer.sep_id] for blank in group])
            places = np.asarray([row * ids.shape[1] + blank.place + 1 for row, blank in enumerate(group)])
            ids.reshape(-1)[places] = tokenizer.mask_id
            inputs = torch.from_numpy(ids)
            last = bert(inputs, torch.zeros_like(inputs)).last
            logits = masked_word_logits(bert, last, torch.from_numpy(places))
            answers = torch.tensor([blank.answer for blank in group])
            ranks += (logits > logits.gather(1, answers[:, None])).sum(1).tolist()
    return ranks


def counted_ranks(corpus: Path, blanks: list[Blank]) -> dict[str, list[int]]:
    """Return the ranks under the 5-gram model, with the left context alone and with both contexts."""
    opened = Corpus.open(corpus)
    vocabulary = Tokenizer.from_folder(corpus).size
    ngrams = KneserNey(opened.read(0, int(opened.sentences[-1])).astype(np.int64), vocabulary)
    ranks: dict[str, list[int]] = {"5-gram, left": [], "5-gram, both sides": []}
    for number, blank in enumerate(blanks):
        left, right = blank.tokens[blank.place - SIDE : blank.place], blank.tokens[blank.place + 1 :][:SIDE]
        for name, scores in (("5-gram, left", ngrams.after(left)), ("5-gram, both sides", ngrams.blank(left, right))):
            ranks[name].append(int((scores > scores[blank.answer]).sum()))
        if number % 200 == 199:
            print(f"{number + 1} of {len(blanks)} blanks ranked by the 5-gram", flush=True)
    return ranks


def cached_ranks(keep: Path | None, corpus: Path, blanks: list[Blank], seed: int) -> dict[str, list[int]]:
    """Return the 5-gram's ranks, read from a cache file if one is given."""
    what = f"{len(blanks)} blanks of seed {seed}"
    if keep and keep.is_file():
        cached = json.loads(keep.read_text(encoding="utf-8"))
        if cached["what"] != what:
            raise SystemExit(f"{keep} holds the ranks of {cached['what']}, but this run uses {what}; name another file")
        return dict(cached["ranks"])
    ranks = counted_ranks(corpus, blanks)
    if keep:
        keep.write_text(json.dumps({"what": what, "ranks": ranks}), encoding="utf-8")
    return ranks


def _groups(blanks: list[Blank], size: int) -> Iterator[list[Blank]]:
    for start in range(0, len(blanks), size):
        yield blanks[start : start + size]


def groups_of(blanks: list[Blank]) -> tuple[str, Ints]:
    """Return the unit that blanks are clustered by, and the cluster of each blank."""
    documents = np.asarray([blank.document for blank in blanks])
    if len(np.unique(documents)) >= LEAST_GROUPS:
        return "documents", documents
    return "windows", np.asarray([blank.window for blank in blanks])


def clustered_interval(values: ArrayLike, groups: Ints) -> tuple[float, float, float]:
    """Return the mean of correlated values and its 95 % confidence interval.

    The variance is that of the sums per cluster (Liang and Zeger 1986), with one degree of freedom less than there are
    clusters.
    """
    numbers = np.asarray(values, dtype=np.float64)
    _, members = np.unique(groups, return_inverse=True)
    count = int(members.max()) + 1
    if count < 2:
        raise SystemExit("all blanks belong to one cluster; confidence intervals need a longer text")
    mean = float(numbers.mean())
    sums = np.bincount(members, weights=numbers - mean)
    error = np.sqrt(count / (count - 1) * (sums**2).sum()) / len(numbers)
    half = float(student.ppf(0.975, count - 1) * error)
    return mean, mean - half, mean + half


def _accuracy(hits: ArrayLike, groups: Ints) -> str:
    mean, low, high = clustered_interval(hits, groups)
    return f"{mean:6.1%} ({low:.1%} to {high:.1%})"


def _lead(ours: list[int], theirs: list[int], top: int, groups: Ints) -> str:
    """Return the paired difference in top-k accuracy, in percentage points with its interval."""
    differences = 100.0 * ((np.asarray(ours) < top).astype(float) - (np.asarray(theirs) < top))
    mean, low, high = clustered_interval(differences, groups)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def print_table(ranks: dict[str, list[int]], blanks: list[Blank], is_start: list[bool], model: str | None) -> None:
    """Print the accuracy on all blanks and on word starts, then the model's lead over the 5-grams."""
    kind, groups = groups_of(blanks)
    everything, starts = np.ones(len(blanks), bool), np.asarray(is_start)
    print(f"{len(blanks):,} blanks in {len(np.unique(groups)):,} {kind} (the clusters of the intervals)")
    for name, some in ranks.items():
        for what, chosen in (("all", everything), ("word starts", starts)):
            accuracies = {top: _accuracy((np.asarray(some) < top)[chosen], groups[chosen]) for top in (1, 5)}
            shares = "  ".join(f"top-{top} {accuracy}" for top, accuracy in accuracies.items())
            print(f"{name:<24} {what:<12} {int(chosen.sum()):5} {shares}")
    if model is None:
        return
    for name in [name for name in ranks if name != model]:
        leads = "  ".join(f"top-{top} {_lead(ranks[model], ranks[name], top, groups)}" for top in (1, 5))
        print(f"lead over {name:<24} points: {leads}")


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Predict hidden tokens with a model and with a Kneser-Ney 5-gram.")
    parser.add_argument("--model", default=None)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--blanks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the hidden tokens (default: 0)")
    parser.add_argument("--keep", type=Path, help="cache file for the 5-gram's ranks")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_folder(arguments.corpus)
    blanks = make_blanks(arguments.text, tokenizer, arguments.blanks, arguments.seed)
    ranks = cached_ranks(arguments.keep, arguments.corpus, blanks, arguments.seed)
    if arguments.model:
        ranks[arguments.model] = model_ranks(find_source(arguments.model), blanks)
    is_start = [not tokenizer.settings.pieces[blank.answer].startswith("##") for blank in blanks]
    print_table(ranks, blanks, is_start, arguments.model)


if __name__ == "__main__":
    main()
