"""Compare vocabulary sizes: models that differ only in this size predict the same hidden words of held-out books.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini
    python benchmarks/vocabulary_sizes.py --text runs/mini/train.txt --held-out runs/mini/held_out.txt

Losses of different vocabularies are not comparable: a piece of a word is easier to predict than the word. So one whole
word per sentence is hidden by one [MASK] per piece, and a prediction is correct if all its pieces are. (The number of
masks reveals the number of pieces, which slightly favours small vocabularies.) All models train for the same number of
updates and tokens. Confidence intervals are clustered by chapter; those of differences are paired by word. Results are
stored in --out; re-running the same command resumes from them.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blanks import clustered_interval  # module in benchmarks/
from cloze.corpus.documents import read_documents
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import VocabularySettings
from cloze.files import read_json, replace_json
from cloze.predict import Model, load
from cloze.text import MASK, Tokenizer
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PretrainSettings
from kneser_ney import Ints

# Settings of the first phase of cloze-mini: short sequences, no sentence task, no dropout.
TRAINING = PretrainSettings(
    batch_size=64, max_length=32, learning_rate=1e-3, objective="none", dropout=0.0, evaluate_every=0
)
MOST_WORDS = 18  # words per sentence: most sentences of this length fit without truncation, even in small pieces
TEXT_BYTES = 30_000_000


def main() -> None:
    """Train, evaluate and print."""
    parser = argparse.ArgumentParser(description="Compare models that differ only in vocabulary size.")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8_000, 16_000, 30_000])
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/vocabulary_sizes"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    text = sample(arguments.text, arguments.out)
    vocabularies = [learn(text, arguments.out / str(size) / "vocabulary", size) for size in arguments.sizes]
    tokenizers = [Tokenizer.from_folder(vocabulary) for vocabulary in vocabularies]
    blanks = list(make_blanks(arguments.held_out, tokenizers))
    random.Random(0).shuffle(blanks)
    blanks = blanks[: arguments.words]
    found: dict[int, NDArray[np.float64]] = {}
    for size, vocabulary in zip(arguments.sizes, vocabularies, strict=True):
        data = prepare([text], vocabulary, vocabulary.parent / "data")
        settings = replace(TRAINING, preset=arguments.preset, steps=arguments.steps)
        run = pretrain(data, vocabulary.parent / "run", settings=settings)
        model = load(run)
        found[size] = 100.0 * np.asarray(cached_answers(model, run.parent / "answers.json", blanks))
        print(line(model, size, found[size], blanks, seconds_of(run)), flush=True)
    print_leads(found, blanks, tokenizers[0])


def sample(text: Path, out: Path) -> Path:
    """Write every fourth document, so that the sample covers many books."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "text.txt"
    if not path.is_file():
        size, parts = 0, []
        for document in islice(read_documents([text]), 0, None, 4):
            parts.append("\n".join(document) + "\n")
            size += len(parts[-1])
            if size > TEXT_BYTES:
                break
        path.write_text("\n".join(parts), encoding="utf-8")
    return path


def learn(text: Path, folder: Path, size: int) -> Path:
    """Train a vocabulary of the given size."""
    if not folder.is_dir():
        train_vocabulary([text], folder, settings=VocabularySettings(size=size))
    return folder


@dataclass(frozen=True)
class Blank:
    """A hidden word: the text before it, the word, the text after it, and the chapter."""

    before: str
    word: str
    after: str
    chapter: int


def make_blanks(held_out: Path, tokenizers: list[Tokenizer]) -> Iterator[Blank]:
    """Yield one word from every sentence that all models can encode without truncation."""
    chance = random.Random(0)
    longest = TRAINING.max_length - 2  # [CLS] and [SEP]
    for chapter, document in enumerate(read_documents([held_out])):
        for paragraph in document:
            for sentence in re.split(r"(?<=[.!?]) ", paragraph):
                words = list(re.finditer(r"[A-Za-z]+", sentence))
                if 6 <= len(words) <= MOST_WORDS and all(
                    len(tokenizer.encode_ids([sentence])[0]) <= longest for tokenizer in tokenizers
                ):
                    word = chance.choice(words)
                    yield Blank(sentence[: word.start()], word.group(), sentence[word.end() :], chapter)


def cached_answers(model: Model, cache: Path, blanks: list[Blank]) -> list[bool]:
    """Return whether each word was predicted, read from a cache file if possible."""
    words = [blank.word for blank in blanks]
    if not cache.is_file() or read_json(cache)["words"] != words:
        wanted = model.tokenizer.encode_ids(words)
        texts = [
            blank.before + " ".join([MASK] * len(ids)) + blank.after for blank, ids in zip(blanks, wanted, strict=True)
        ]
        right = [
            [best[0].token for best in answers] == [model.tokenizer.piece(number) for number in ids]
            for answers, ids in zip(model.fill_all(texts, top=1), wanted, strict=True)
        ]
        replace_json(cache, {"words": words, "right": right})
    return list(read_json(cache)["right"])


def seconds_of(run: Path) -> float:
    """Return the duration of a training run in seconds."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return float(max(json.loads(line).get("seconds", 0.0) for line in lines))


def line(model: Model, size: int, right: NDArray[np.float64], blanks: list[Blank], seconds: float) -> str:
    """Format the accuracy and the cost of a vocabulary size."""
    share, low, high = clustered_interval(right, chapters_of(blanks))
    pieces = sum(map(len, model.tokenizer.encode_ids([blank.word for blank in blanks])))
    parameters = sum(parameter.numel() for parameter in model.bert.parameters())
    return (
        f"{size:>6,} pieces: {share:.1f} % ({low:.1f} to {high:.1f}) of {len(blanks):,} words right, "
        f"{pieces / len(blanks):.3f} pieces per word, {parameters / 1e6:.1f} million parameters, "
        f"{2 * parameters / 1e6:.0f} MB in half precision, {seconds:.0f} s of training"
    )


def print_leads(found: dict[int, NDArray[np.float64]], blanks: list[Blank], smallest: Tokenizer) -> None:
    """Print the gain of each size over the previous one, on all words and on words split by the smallest vocabulary."""
    split = np.asarray([len(ids) > 1 for ids in smallest.encode_ids([blank.word for blank in blanks])])
    for (less, before), (more, after) in pairwise(found.items()):
        for what, chosen in (("all words", np.ones(len(blanks), bool)), ("split words", split)):
            mean, low, high = clustered_interval((after - before)[chosen], chapters_of(blanks)[chosen])
            gain = f"{mean:+.1f} ({low:+.1f} to {high:+.1f}) points"
            print(f"{more:,} over {less:,}, {int(chosen.sum()):,} {what}: {gain}")


def chapters_of(blanks: list[Blank]) -> Ints:
    """Return the chapter of each hidden word."""
    return np.asarray([blank.chapter for blank in blanks])


if __name__ == "__main__":
    main()
