"""The reference for ``benchmarks/prepare.py`` behaves like the original data preparation."""

import random
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import pytest
from scipy.stats import ks_2samp

import reference_examples as module
from cloze.text import SPECIAL, learn_pieces
from reference_examples import Instance, basic_tokens, instances_of, make_examples, read_documents, word_pieces
from tests.corpus.reference import create_instances
from tests.corpus.texts import make_documents
from tests.text import reference
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

LENGTH = 64
ROOM = LENGTH - 3
# Random replacement words have names that do not occur in the text.
WORDS = [f"word{number}" for number in range(200)]
Document = list[list[str]]


def name_tokens(sizes: Sequence[Sequence[int]]) -> list[Document]:
    """Return documents with these sentence sizes, each token named by its document, sentence and position."""
    return [
        [[f"{number}.{place}.{token}" for token in range(size)] for place, size in enumerate(sentences)]
        for number, sentences in enumerate(sizes)
    ]


def place_of(token: str) -> tuple[int, int, int]:
    document, sentence, place = map(int, token.split("."))
    return document, sentence, place


def read_segments(instance: Instance) -> tuple[list[str], list[str]]:
    """Return both segments before masking; check the special tokens and segment ids around them."""
    tokens = list(instance.tokens)
    for position, label in zip(instance.positions, instance.labels, strict=True):
        tokens[position] = label
    end = tokens.index("[SEP]")
    first, second = tokens[1:end], tokens[end + 1 : -1]
    assert tokens == ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
    assert instance.segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return first, second


def within_binomial_bounds(count: int, total: int, share: float) -> bool:
    return abs(count - total * share) < 4 * sqrt(total * share * (1 - share))


@pytest.fixture(scope="module")
def sizes() -> list[list[int]]:
    """Return sentence sizes so short that no sentence fills a sequence alone."""
    draw = random.Random(3)
    return [[draw.randint(1, 8) for _ in range(draw.randint(1, 40))] for _ in range(400)]


@pytest.fixture(scope="module")
def examples(sizes: list[list[int]]) -> list[tuple[int, Instance]]:
    """The examples of all documents with their document numbers, none of them deliberately short."""
    documents, draw = name_tokens(sizes), random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHORT", 0.0)
        return [
            (index, instance)
            for index in range(len(documents))
            for instance in instances_of(documents, index, LENGTH, WORDS, draw)
        ]


def test_tokens_are_those_of_the_original() -> None:
    pieces = learn_pieces([ENGLISH, CHINESE, MIXED, *strings(400, seed=5)], 4000, minimum_frequency=1)
    ids = {piece: number for number, piece in enumerate(pieces)}
    known = total = 0
    for text in [*strings(3000, seed=6), ENGLISH, CHINESE, MIXED]:
        words = basic_tokens(text)
        assert words == reference.basic_tokens(text, lowercase=True), text
        found = [word_pieces(word, ids) for word in words]
        # The original's own limit; later code, and cloze's tokenizer, use 100.
        assert found == [reference.word_pieces(word, ids, longest=200) for word in words], text
        total += sum(map(len, found))
        known += sum(piece != "[UNK]" for one in found for piece in one)
    assert known > 0.5 * total  # a vocabulary without known words would agree trivially


def test_published_cases() -> None:
    pieces = [*SPECIAL, "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    ids = {piece: number for number, piece in enumerate(pieces)}
    for text, expected in (
        ("UNwant\u00e9d,running", ["un", "##want", "##ed", ",", "runn", "##ing"]),
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("", []),
    ):
        assert [piece for word in basic_tokens(text) for piece in word_pieces(word, ids)] == expected
    assert basic_tokens("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    assert basic_tokens(" \tHeLLo!how  \n Are yoU?  ") == ["hello", "!", "how", "are", "you", "?"]
    assert basic_tokens("a\u0000b\ufffdc\u200bd") == ["abcd"]


def test_documents_are_separated_by_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\nun want\n \u200b \nwant\n\n\n \nun\n", encoding="utf-8")
    ids = {piece: number for number, piece in enumerate([*SPECIAL, "un", "want"])}
    assert read_documents(tmp_path / "text.txt", ids) == [[["un", "want"], ["want"]], [["un"]]]


def test_pairs_fill_the_length_and_no_more(examples: list[tuple[int, Instance]], sizes: list[list[int]]) -> None:
    lengths = [len(instance.tokens) for _, instance in examples]
    assert len(examples) > 500
    assert max(lengths) == LENGTH
    whole = 0
    for index, instance in examples:
        first, second = read_segments(instance)
        assert first
        assert second
        # The segment reached its target length before the document ended.
        if not instance.is_random and place_of(second[-1])[1] < len(sizes[index]) - 1:
            assert len(instance.tokens) == LENGTH
            whole += 1
    assert whole > 100


def test_real_second_segments_follow_and_random_ones_are_of_other_documents(
    examples: list[tuple[int, Instance]],
) -> None:
    for index, instance in examples:
        first, second = ([place_of(token) for token in segment] for segment in read_segments(instance))
        for segment in (first, second):
            assert segment == sorted(segment)
            assert len({document for document, *_ in segment}) == 1
        assert first[0][0] == index
        assert (second[0][0] != index) == instance.is_random
        if not instance.is_random:
            assert second[0] > first[-1]
            if len(first) + len(second) < ROOM:  # nothing was truncated
                assert second[0] == (index, first[-1][1] + 1, 0)


def test_half_of_the_possible_pairs_are_random(examples: list[tuple[int, Instance]], sizes: list[list[int]]) -> None:
    # If only the last sentence of a document remains, only a random one can follow it.
    coins = []
    for index, instance in examples:
        first, _ = read_segments(instance)
        if place_of(first[0])[1] == len(sizes[index]) - 1:
            assert instance.is_random
        else:
            coins.append(instance.is_random)
    assert len(coins) > 500
    assert within_binomial_bounds(sum(coins), len(coins), 0.5)


def test_segments_are_as_long_as_those_of_the_plain_reference(
    examples: list[tuple[int, Instance]], sizes: list[list[int]]
) -> None:
    documents = [[[0] * size for size in sentences] for sentences in sizes]
    draw = random.Random(1)
    others = [one for index in range(len(documents)) for one in create_instances(documents, index, LENGTH, draw)]
    ours = [read_segments(instance) for _, instance in examples]
    assert ks_2samp([len(one.first) for one in others], [len(first) for first, _ in ours]).pvalue > 0.01
    assert ks_2samp([len(one.second) for one in others], [len(second) for _, second in ours]).pvalue > 0.01


def test_one_document_in_ten_wants_shorter_sequences() -> None:
    # With sentences of one token, segments have exactly the target length.
    documents, draw, length = name_tokens([[1] * 150] * 1000), random.Random(0), 32
    wanted = [
        max(len(instance.tokens) - 3 for instance in instances_of(documents, index, length, WORDS, draw))
        for index in range(len(documents))
    ]
    assert max(wanted) == length - 3
    assert min(wanted) >= 2
    shorter = [one for one in wanted if one < length - 3]
    # one of 28 target lengths is the full length
    assert within_binomial_bounds(len(shorter), len(wanted), 0.1 * 27 / 28)
    assert len(set(shorter)) > 20


def test_masks_keep_their_budget_and_their_shares(examples: list[tuple[int, Instance]]) -> None:
    hidden = kept = chosen = 0
    random_words: list[str] = []
    for _, instance in examples:
        tokens, positions = instance.tokens, instance.positions
        assert len(positions) == min(20, max(1, round(0.15 * len(tokens))))
        assert positions == sorted(set(positions))
        assert not {"[CLS]", "[SEP]"} & set(instance.labels)
        others = [token for place, token in enumerate(tokens) if place not in positions]
        assert not {"[MASK]", *WORDS} & set(others)
        seen = [tokens[position] for position in positions]
        chosen += len(seen)
        hidden += seen.count("[MASK]")
        kept += sum(one == label for one, label in zip(seen, instance.labels, strict=True))
        random_words += [one for one in seen if one in WORDS]
    assert hidden + kept + len(random_words) == chosen
    for count, share in ((hidden, 0.8), (kept, 0.1), (len(random_words), 0.1)):
        assert within_binomial_bounds(count, chosen, share)
    assert len(set(random_words)) > 0.8 * len(WORDS)


def test_no_more_than_twenty_tokens_are_hidden() -> None:
    documents = name_tokens([[100, 100], [50]])
    examples = [one for seed in range(10) for one in instances_of(documents, 0, 203, WORDS, random.Random(seed))]
    long = [instance for instance in examples if len(instance.tokens) > 150]
    assert long
    assert {len(instance.positions) for instance in long} == {20}


def test_all_examples_of_a_file_are_created_once(tmp_path: Path) -> None:
    documents = make_documents(30)
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    vocabulary = learn_pieces([text], 200)
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    read, draw = read_documents(tmp_path / "text.txt", ids), random.Random(12345)
    assert [len(document) for document in read] == [len(document) for document in documents]
    draw.shuffle(read)
    lengths = [len(one.tokens) for index in range(len(read)) for one in instances_of(read, index, 64, vocabulary, draw)]
    assert make_examples(tmp_path / "text.txt", vocabulary, 64) == sum(lengths)
    assert sum(lengths) > sum(len(sentence) for document in read for sentence in document)
