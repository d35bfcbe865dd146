"""Which size of vocabulary serves a model: models that differ in it alone, asked for the same words of unread books.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini
    python benchmarks/vocabulary_sizes.py --text runs/mini/train.txt --held-out runs/mini/held_out.txt

Losses of different vocabularies cannot be compared: a piece of a word is easier to guess than the word. So one word of
a sentence is hidden whole, with a [MASK] for each of its pieces, and counts if all of them are right. (How many pieces
it has is told to whoever has small ones, a little in their favour.) All models have as many updates of as many tokens.
Bounds go by chapters, and those of a difference by what each word brings. Everything is kept in --out; the same command
goes on where it stopped.
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

from blanks import clustered_interval  # beside this file
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

# As cloze-mini begins: short sequences, no sentence task, no dropout.
TRAINING = PretrainSettings(
    batch_size=64, max_length=32, learning_rate=1e-3, objective="none", dropout=0.0, evaluate_every=0
)
MOST_WORDS = 18  # of a sentence: most of these are read whole, in pieces as well
TEXT_BYTES = 30_000_000


def main() -> None:
    """Train, ask, print."""
    parser = argparse.ArgumentParser(description="Models that differ in the size of their vocabulary.")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8_000, 16_000, 30_000])
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/vocabulary_sizes"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    text = sample(asked.text, asked.out)
    vocabularies = [learn(text, asked.out / str(size) / "vocabulary", size) for size in asked.sizes]
    tokenizers = [Tokenizer.from_folder(vocabulary) for vocabulary in vocabularies]
    blanks = list(make_blanks(asked.held_out, tokenizers))
    random.Random(0).shuffle(blanks)
    blanks = blanks[: asked.words]
    found: dict[int, NDArray[np.float64]] = {}
    for size, vocabulary in zip(asked.sizes, vocabularies, strict=True):
        data = prepare([text], vocabulary, vocabulary.parent / "data")
        settings = replace(TRAINING, preset=asked.preset, steps=asked.steps)
        run = pretrain(data, vocabulary.parent / "run", settings=settings)
        model = load(run)
        found[size] = 100.0 * np.asarray(kept_answers(model, run.parent / "answers.json", blanks))
        print(line(model, size, found[size], blanks, seconds_of(run)), flush=True)
    print_leads(found, blanks, tokenizers[0])


def sample(text: Path, out: Path) -> Path:
    """Every fourth document, so that many books are there."""
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
    """A vocabulary of this size."""
    if not folder.is_dir():
        train_vocabulary([text], folder, settings=VocabularySettings(size=size))
    return folder


@dataclass(frozen=True)
class Blank:
    """A word of a sentence: what stands before it, the word, what stands behind, and the chapter."""

    before: str
    word: str
    after: str
    chapter: int


def make_blanks(held_out: Path, tokenizers: list[Tokenizer]) -> Iterator[Blank]:
    """A word of every sentence that all of the models can read whole."""
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


def kept_answers(model: Model, kept: Path, blanks: list[Blank]) -> list[bool]:
    """Whether each word was named, asked once."""
    words = [blank.word for blank in blanks]
    if not kept.is_file() or read_json(kept)["words"] != words:
        wanted = model.tokenizer.encode_ids(words)
        texts = [
            blank.before + " ".join([MASK] * len(ids)) + blank.after for blank, ids in zip(blanks, wanted, strict=True)
        ]
        right = [
            [best[0].token for best in answers] == [model.tokenizer.piece(number) for number in ids]
            for answers, ids in zip(model.fill_all(texts, top=1), wanted, strict=True)
        ]
        replace_json(kept, {"words": words, "right": right})
    return list(read_json(kept)["right"])


def seconds_of(run: Path) -> float:
    """How long the training took."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return float(max(json.loads(line).get("seconds", 0.0) for line in lines))


def line(model: Model, size: int, right: NDArray[np.float64], blanks: list[Blank], seconds: float) -> str:
    """What a size brings, and what it takes."""
    share, low, high = clustered_interval(right, chapters_of(blanks))
    pieces = sum(map(len, model.tokenizer.encode_ids([blank.word for blank in blanks])))
    parameters = sum(parameter.numel() for parameter in model.bert.parameters())
    return (
        f"{size:>6,} pieces: {share:.1f} % ({low:.1f} to {high:.1f}) of {len(blanks):,} words right, "
        f"{pieces / len(blanks):.3f} pieces a word, {parameters / 1e6:.1f} million parameters, "
        f"{2 * parameters / 1e6:.0f} MB in half precision, {seconds:.0f} s of training"
    )


def print_leads(found: dict[int, NDArray[np.float64]], blanks: list[Blank], smallest: Tokenizer) -> None:
    """What each size is ahead of the one before, over all words and over those that the smallest has in pieces."""
    split = np.asarray([len(ids) > 1 for ids in smallest.encode_ids([blank.word for blank in blanks])])
    for (less, before), (more, after) in pairwise(found.items()):
        for what, chosen in (("all words", np.ones(len(blanks), bool)), ("words in pieces", split)):
            mean, low, high = clustered_interval((after - before)[chosen], chapters_of(blanks)[chosen])
            told = f"{mean:+.1f} ({low:+.1f} to {high:+.1f}) points"
            print(f"{more:,} ahead of {less:,}, {int(chosen.sum()):,} {what}: {told}")


def chapters_of(blanks: list[Blank]) -> Ints:
    """The chapter of each."""
    return np.asarray([blank.chapter for blank in blanks])


if __name__ == "__main__":
    main()
