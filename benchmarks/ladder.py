"""Measure the cost of out-of-vocabulary handling: tokenizing with 10,000 added words and with 50,000 entities.

    python benchmarks/ladder.py [--data ../shared/data] [--rounds 7]

The text is the biomedical corpus; the vocabulary comes from the MiniLM weights. The added words are the 10,000
best-ranked candidates from this text and the NSF abstracts. The entities are pairs of words with at least one that the
vocabulary lacks: the 50,000 most frequent pairs of the NSF abstracts (some occur in the text) or of the text itself
(all occur). The peer is `transformers` with the same words as added tokens. All variants alternate in one run; ratios
to the plain tokenizer ("none") are medians over the rounds.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

from transformers import AutoTokenizer

from cloze.corpus.documents import read_lines
from cloze.text import Tokenizer
from cloze.text.oov.coverage import measure_coverage
from cloze.text.oov.extension import Additions, EntityRow, WordRow, extend_tokenizer
from cloze.text.oov.ladder import Entity
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

WORDS, ENTITIES = 10_000, 50_000
Work = Callable[[list[str]], object]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of out-of-vocabulary handling in tokenization.")
    add_data(parser)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "corpus_sci/biomed.txt.xz", "corpus_sci/nsf_awards.txt.xz")
    biomedical = _lines(arguments.data / "corpus_sci/biomed.txt.xz")
    science = _lines(arguments.data / "corpus_sci/nsf_awards.txt.xz")
    plain = Tokenizer.from_folder(minilm())
    tokenizers = _extended(plain, biomedical, science)
    megabytes = sum(len(line.encode()) for line in biomedical) / 1e6
    print(f"{megabytes:.1f} MB of text, {arguments.rounds} rounds")
    for name, method in (("encode_ids, for corpora", "encode_ids"), ("encode_batch, for predictions", "encode_batch")):
        works = {label: getattr(tokenizer, method) for label, tokenizer in tokenizers.items()}
        _compare(name, works, biomedical, megabytes, arguments.rounds)
    added = list(tokenizers["10,000 added words"].settings.ladder.words)
    peers = {"none": _peer([]), "10,000 added tokens": _peer(added)}
    _compare("transformers, ids alone", peers, biomedical, megabytes, max(arguments.rounds // 2, 2))


def _lines(path: Path) -> list[str]:
    return [line for line in read_lines(path) if line]


def _extended(plain: Tokenizer, biomedical: list[str], science: list[str]) -> dict[str, Tokenizer]:
    candidates = measure_coverage([*biomedical, *science], plain, minimum=2).candidates[:WORDS]
    words = extend_tokenizer(plain, Additions(words=[WordRow("made", one.word) for one in candidates])).tokenizer
    elsewhere = extend_tokenizer(plain, Additions(entities=_entities(science, plain))).tokenizer
    here = extend_tokenizer(plain, Additions(entities=_entities(biomedical, plain))).tokenizer
    rungs = replace(
        words.settings.ladder, characters=True, look_alikes=True, entities=elsewhere.settings.ladder.entities
    )
    return {
        "none": plain,
        "10,000 added words": words,
        "50,000 entities of another text": elsewhere,
        "50,000 entities of the text": here,
        "all rungs: these words, these entities": Tokenizer(replace(words.settings, ladder=rungs)),
    }


def _entities(lines: list[str], plain: Tokenizer) -> list[EntityRow]:
    """Return the most frequent word pairs with a word that the vocabulary lacks, which resemble proper names."""
    pairs = Counter(pair for line in lines for pair in pairwise(line.lower().split()) if all(map(str.isalpha, pair)))
    named = (pair for pair, _ in pairs.most_common() if any(plain.id(word) is None for word in pair))
    return [EntityRow("made", Entity(" ".join(pair), "protein", "made")) for pair in islice(named, ENTITIES)]


def _peer(words: list[str]) -> Work:
    tokenizer = AutoTokenizer.from_pretrained(str(minilm()))
    tokenizer.add_tokens(words)
    tokenizer.model_max_length = 10**9

    def work(texts: list[str]) -> object:
        return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)

    return work


def _compare(title: str, works: dict[str, Work], texts: list[str], megabytes: float, rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():  # warm-up, which fills caches and allocates memory
        work(texts[:200])
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work(texts)
            seconds[name].append(time.perf_counter() - start)
    print(f"\n{title}")
    print(f"{'':<46}{'MB/s':>7}{'time / none':>15}")
    base = seconds["none"]
    for name, times in seconds.items():
        ratio = median(one / other for one, other in zip(times, base, strict=True))
        print(f"{name:<46}{megabytes / median(times):>7.2f}{ratio:>15.2f}")


if __name__ == "__main__":
    main()
