"""Which size of vocabulary serves a model: models that differ in it alone, asked for the same words of unread books.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini
    python benchmarks/vocabulary_sizes.py --text runs/mini/train.txt --held-out runs/mini/held_out.txt

Losses of different vocabularies cannot be compared: a piece of a word is easier to guess than the word. So one word of
a sentence is hidden whole, with a [MASK] for each of its pieces, and counts if all of them are right. (How many pieces
it has is told to whoever has small ones, a little in their favour.) All models have as many updates of as many tokens.
Everything is kept in --out; the same command goes on where it stopped.
"""

import argparse
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from cloze.corpus.documents import read_documents
from cloze.corpus.prepare import prepare
from cloze.corpus.settings import VocabularySettings
from cloze.corpus.vocabulary import train_vocabulary
from cloze.files import read_json, replace_json
from cloze.predict import Model, load
from cloze.text import MASK, Tokenizer
from cloze.train.pretrain import pretrain
from cloze.train.settings import PretrainSettings

# As cloze-mini begins: short sequences, no sentence task, no dropout.
TRAINING = PretrainSettings(batch=64, length=32, rate=1e-3, objective="none", dropout=0.0, evaluate_every=0)
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
    blanks = list(islice(make_blanks(asked.held_out, tokenizers), asked.words))
    for size, vocabulary in zip(asked.sizes, vocabularies, strict=True):
        data = prepare([text], vocabulary, vocabulary.parent / "data")
        settings = replace(TRAINING, preset=asked.preset, steps=asked.steps)
        run = pretrain(data, vocabulary.parent / "run", settings=settings)
        print(line(load(run), size, run, blanks), flush=True)


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


def make_blanks(held_out: Path, tokenizers: list[Tokenizer]) -> Iterator[tuple[str, str, str]]:
    """Sentences with a word to hide: what stands before it, the word, and what stands behind.

    Only such as all of the models can read whole.
    """
    chance = random.Random(0)
    longest = TRAINING.length - 2  # [CLS] and [SEP]
    for document in read_documents([held_out]):
        for paragraph in document:
            for sentence in re.split(r"(?<=[.!?]) ", paragraph):
                words = list(re.finditer(r"[A-Za-z]+", sentence))
                if 6 <= len(words) <= MOST_WORDS and all(
                    len(tokenizer.encode_ids([sentence])[0]) <= longest for tokenizer in tokenizers
                ):
                    word = chance.choice(words)
                    yield sentence[: word.start()], word.group(), sentence[word.end() :]


def line(model: Model, size: int, run: Path, blanks: list[tuple[str, str, str]]) -> str:
    """Ask, and say how it went."""
    kept = run.parent / "scores.json"
    if not kept.is_file():
        wanted = [model.tokenizer.encode_ids([word])[0] for _, word, _ in blanks]
        texts = [
            before + " ".join([MASK] * len(ids)) + after for (before, _, after), ids in zip(blanks, wanted, strict=True)
        ]
        said = model.fill_all(texts, top=1)
        right = [
            [best[0].token for best in answers] == [model.tokenizer.piece(number) for number in ids]
            for answers, ids in zip(said, wanted, strict=True)
        ]
        replace_json(kept, {"right": sum(right), "pieces": sum(map(len, wanted))})
    scores = read_json(kept)
    share = scores["right"] / len(blanks)
    margin = 1.96 * (share * (1 - share) / len(blanks)) ** 0.5
    parameters = sum(parameter.numel() for parameter in model.bert.parameters())
    return (
        f"{size:>6,} pieces: {share:.1%} ± {margin:.1%} of {len(blanks):,} words right, "
        f"{scores['pieces'] / len(blanks):.3f} pieces a word, {parameters / 1e6:.1f} million parameters, "
        f"{2 * parameters / 1e6:.0f} MB in half precision"
    )


if __name__ == "__main__":
    main()
