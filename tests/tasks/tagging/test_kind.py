import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from seqeval.metrics import f1_score

from cloze.errors import ConfigError, DataError
from cloze.options import IGNORED
from cloze.tasks.examples import LabelSet
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.tasks.tagging.columns import Sentence
from cloze.tasks.tagging.kind import (
    BIO_NER,
    CONLL,
    MSRA,
    TaggedSentences,
    group_neighbours,
    is_word_table,
    join_words,
    read_own_tags,
    read_published_tags,
    tag_items,
)
from cloze.tasks.tagging.sequences import (
    Span,
    find_entities,
    find_tags,
    have_entity_prefixes,
    normalize_tags,
    read_words,
    score_tags,
    tag_metrics,
    tag_windows,
)
from cloze.text import SPECIAL, Tokenizer

LETTERS = [chr(ord("a") + number) for number in range(26)]
TOKENIZER = Tokenizer.from_vocabulary([*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)], lowercase=True)

# CoNLL's scheme: B only where an entity directly follows another of the same type.
IOB1 = "EU I-ORG\nsays O\n\nPeter I-PER\nAnn B-PER\nBonn I-LOC\nlikes O\nUS I-ORG\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, labels: LabelSet | None = None, on_bad_row: str = "stop") -> TaggedSentences:
    names = {"text": "words", "label": "tags"} if is_word_table(path) else {}
    source = Source("tag", path, on_bad_row=on_bad_row, **names)  # type: ignore[arg-type]
    examples = read_own_tags(source, "train", labels).examples
    assert isinstance(examples, TaggedSentences)
    return examples


def tags(examples: TaggedSentences) -> list[list[str]]:
    return [[examples.labels.names[index] for index in row] for row in examples.targets]


# -- tags and entities -------------------------------------------------------------------------------------------------


def test_original_marks_become_those_of_today(tmp_path: Path) -> None:
    examples = read(write(tmp_path / "a.txt", IOB1))
    assert tags(examples) == [["B-ORG", "O"], ["B-PER", "B-PER", "B-LOC", "O", "B-ORG"]]
    assert examples.labels.names == ("B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("B-X I-X I-X O B-X B-X", "B-X I-X I-X O B-X B-X"),
        ("I-X I-X I-Y B-Y", "B-X I-X B-Y B-Y"),
        ("B-X E-X S-Y O B-X I-X E-X", "B-X E-X S-Y O B-X I-X E-X"),
        ("B-X M-X L-X U-Y", "B-X I-X E-X S-Y"),
        ("S-X I-X", "S-X B-X"),
    ],
)
def test_tags_of_entities_are_unified(given: str, expected: str) -> None:
    sentence = Sentence(Path("a"), 1, 0, [], given.split())
    assert normalize_tags(sentence) == expected.split()
    assert find_entities(normalize_tags(sentence)) == find_entities(
        given.translate(str.maketrans("LUM", "ESI")).split()
    )


def test_plain_tags_are_left_alone(tmp_path: Path) -> None:
    examples = read(write(tmp_path / "a.txt", "the DT\ndog NN\nruns VBZ\n"))
    assert tags(examples) == [["DT", "NN", "VBZ"]]
    assert tag_metrics(examples.labels) == ("accuracy", "macro_f1")
    assert not have_entity_prefixes(examples.labels.names)


def test_labels_of_entities_are_complete() -> None:
    assert find_tags([["B-X", "O"]]).names == ("B-X", "I-X", "O")
    assert find_tags([["S-X"]]).names == ("B-X", "E-X", "I-X", "O", "S-X")
    assert find_tags([["B-X", "E-X"]]).names == ("B-X", "E-X", "I-X", "O", "S-X")
    # Schemes without E or with single-word B: decoding must not require tags that no row has.
    assert find_tags([["S-X", "B-X", "I-X"]]).names == ("B-X", "I-X", "O", "S-X")
    assert find_tags([["B-X", "E-X", "B-X"]]).names == ("B-X", "E-X", "I-X", "O")


def test_a_tag_without_prefix_among_entities(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x B-PER\n\ny O\nz PER\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}:4: tag 'PER' is neither O nor a prefix with a type, unlike the others; expected a tag such as B-PER"
    )
    examples = read(path, on_bad_row="skip")
    assert (examples.words, examples.skipped) == ([["x"]], 1)


def test_a_tag_that_training_lacks(tmp_path: Path) -> None:
    labels = read(write(tmp_path / "train.txt", IOB1)).labels
    path = write(tmp_path / "dev.txt", "x O\n\ny O\nz B-MISC\n")
    with pytest.raises(DataError, match=r"dev.txt:4: label 'B-MISC' is not among the 7 labels of training"):
        read(path, labels)
    examples = read(path, labels, on_bad_row="skip")
    assert (examples.words, examples.skipped) == ([["x"]], 1)
    write(path, "z B-MISC\n")
    with pytest.raises(DataError, match=r"dev.txt: all 1 sentences are bad; the first: .*B-MISC"):
        read(path, labels, on_bad_row="skip")


def chunks(sentence: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities by the definition in CoNLL's script, as a state machine over (previous, current)."""
    found, start = set(), None
    padded = ["O", *sentence, "O"]
    for place in range(1, len(padded)):
        before, now = padded[place - 1].partition("-"), padded[place].partition("-")
        if start is not None:
            over = before[0] in "ES" or now[0] in "BSO" or before[2] != now[2]
            if over:
                found.add((before[2], start, place - 2))
                start = None
        if start is None and now[0] != "O":
            start = place - 1
    return found


def defined(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    true = {(row, *chunk) for row, sentence in enumerate(expected) for chunk in chunks(sentence)}
    found = {(row, *chunk) for row, sentence in enumerate(predicted) for chunk in chunks(sentence)}
    both = len(true & found)
    precision, recall = both / len(found) if found else 0.0, both / len(true) if true else 0.0
    return 2 * precision * recall / (precision + recall) if both else 0.0, precision, recall


@pytest.mark.parametrize("seed", range(60))
def test_scores_are_those_of_the_definition(seed: int) -> None:
    """Scores follow CoNLL's definition on random tags, which are mostly invalid: I after O, type changes, lone E."""
    draw = random.Random(seed)
    prefixes = "BI" if seed % 2 else "BIES"
    names = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in "XY")]
    lengths = [draw.randint(1, 9) for _ in range(20)]
    expected = [draw.choices(names, k=length) for length in lengths]
    predicted = [[tag if draw.random() < 0.7 else draw.choice(names) for tag in sentence] for sentence in expected]
    scores = score_tags(find_tags(expected), expected, predicted)
    f1, precision, recall = defined(expected, predicted)
    assert list(scores) == ["f1", "precision", "recall", "accuracy"]
    assert (scores["f1"], scores["precision"], scores["recall"]) == pytest.approx((f1, precision, recall))
    assert scores["f1"] == pytest.approx(f1_score(expected, predicted))
    assert 0 < scores["f1"] < 1
    right = sum(
        one == other
        for row, rows in zip(expected, predicted, strict=True)
        for one, other in zip(row, rows, strict=True)
    )
    assert scores["accuracy"] == pytest.approx(right / sum(lengths))
    for sentence in predicted:
        assert {tuple(span) for span in find_entities(sentence)} == chunks(sentence)


def test_a_sentence_ends_its_last_entity() -> None:
    scores = score_tags(LabelSet(("B-X", "I-X", "O")), [["B-X"], ["I-X"]], [["B-X"], ["O"]])
    assert (scores["precision"], scores["recall"]) == (1.0, 0.5)


def test_nothing_told_scores_nothing() -> None:
    scores = score_tags(LabelSet(("B-X", "I-X", "O")), [["B-X", "O"]], [["O", "O"]])
    assert scores == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 0.5}


def test_plain_tags_are_scored_one_by_one() -> None:
    scores = score_tags(LabelSet(("DT", "NN")), [["DT", "NN"], ["NN", "NN"]], [["DT", "NN"], ["DT", "NN"]])
    assert scores == {"accuracy": 0.75, "macro_f1": pytest.approx((2 / 3 + 0.8) / 2)}


def test_entities() -> None:
    assert find_entities(["O", "B-X", "I-X", "I-Y", "O"]) == [Span("X", 1, 2), Span("Y", 3, 3)]
    assert find_entities(["NN", "DT"]) == []


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (CONLL, ("eng.train", "eng.testa", "eng.testb")),
        (CONLL, ("train.txt", "valid.txt", "test.txt")),
        (MSRA, ("train.txt", "dev.txt", "test.txt")),
        (BIO_NER, ("train.tsv", "devel.tsv", "test.tsv")),
    ],
)
def test_published_folders(tmp_path: Path, files: dict[str, tuple[str, ...]], names: tuple[str, ...]) -> None:
    for number, name in enumerate(names):
        write(tmp_path / name, "\n\n".join(["x B-A"] * (number + 1)))
    source = Source("conll", tmp_path)
    assert [len(read_published_tags(files, source, split, None).examples) for split in files] == [1, 2, 3]


def test_published_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_published_tags(CONLL, Source("conll", tmp_path), "dev", None)
    assert str(caught.value) == (
        f"{tmp_path} has no eng.testa or valid.txt or dev.txt (plain or compressed); check the folder"
    )
    with pytest.raises(DataError, match=r"nowhere is not a folder; expected one that contains eng.train or train.txt"):
        read_published_tags(CONLL, Source("conll", tmp_path / "nowhere"), "train", None)
    with pytest.raises(ConfigError, match="conll has no split 'test2'; did you mean 'test'"):
        read_published_tags(CONLL, Source("conll", tmp_path), "test2", None)


def test_metrics_follow_from_the_tags(tmp_path: Path) -> None:
    entities, plain = write(tmp_path / "a.txt", IOB1 * 20), write(tmp_path / "b.txt", "a DT\nb NN\n\n" * 20)
    assert read_task(Source("tag", entities, entities)).metrics == ("f1", "precision", "recall", "accuracy")
    data = read_task(Source("tag", plain))
    assert data.metrics == ("accuracy", "macro_f1")
    assert (len(data.train), len(data.dev)) == (18, 2)


def test_lists_of_words(tmp_path: Path) -> None:
    rows = [{"words": ["Ann", "runs"], "tags": ["I-PER", "O"]}, {"words": ["New York"], "tags": ["B-LOC"]}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    examples = read(path)
    assert (examples.words, tags(examples)) == ([["Ann", "runs"], ["New York"]], [["B-PER", "O"], ["B-LOC"]])
    assert examples.places == [f"{path}:1", f"{path}:2"]
    numbers = read(write(path, '{"words": ["a", "b"], "tags": [3, 12]}\n'))
    assert numbers.labels.names == ("3", "12")


def test_sentences_in_csv_have_spaces_between_words(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,words,tags\n1,"Ann runs , fast",I-PER O O O\n2,Paris,B-LOC\n')
    examples = read(path)
    assert examples.words == [["Ann", "runs", ",", "fast"], ["Paris"]]
    assert tags(examples) == [["B-PER", "O", "O", "O"], ["B-LOC"]]
    assert examples.places == [f"{path}:2", f"{path}:3"]
    with pytest.raises(DataError, match=r"a.csv:2: 2 words in 'words', but 1 tags in 'tags'; give one each"):
        read(write(path, "words,tags\nAnn runs,O\n"))


def test_columns_of_a_word_a_line_have_no_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "word\tpos\nAnn\tNN\n")
    complaint = r"^label is 'pos', but .*a\.tsv has one word per line and columns without names; give a number"
    with pytest.raises(ConfigError, match=complaint):
        read_task(Source("tag", path, label="pos"))
    with pytest.raises(ConfigError, match=r"^text is '0', but .*give a number, 1 for the first or -1 for the last"):
        read_task(Source("tag", path, text="0"))


def test_columns_of_a_word_a_line_have_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "1 Ann NN B-PER\n2 runs VBZ O\n\n")
    data = read_task(Source("tag", path, path, text="2", label="-2"))
    assert isinstance(data.train, TaggedSentences)
    assert (data.train.words, tags(data.train)) == ([["Ann", "runs"]], [["NN", "VBZ"]])
    assert data.train.between == [["1\tB-PER", "2\tO"]]
    assert data.metrics == ("accuracy", "macro_f1")


A_LIST = 'expected a list such as ["a", "b"]: name its column with text (--text) or label (--label)'
MISTAKES = {
    '{"words": ["a", "b"], "tags": ["O"]}': "2 words in 'words', but 1 tags in 'tags'; give one each",
    '{"words": "a b", "tags": ["O"]}': f"'words' is 'a b'; {A_LIST}",
    '{"words": ["a"]}': f"'tags' is missing; {A_LIST}",
    '{"words": [], "tags": []}': f"'words' is []; {A_LIST}",
    '{"words": ["a", " "], "tags": ["O", "O"]}': "item 2 of 'words' is ' '; expected a text",
    '{"words": ["a"], "tags": [null]}': "item 1 of 'tags' is None; expected a text",
    '{"words": ["\\ud800"], "tags": ["O"]}': "item 1 of 'words' has half a surrogate pair; use whole characters",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_bad_lists(tmp_path: Path, line: str) -> None:
    good = '{"words": ["x", "y"], "tags": ["B-X", "O"]}\n'
    path = write(tmp_path / "a.jsonl", f"{good}{line}\n{good}")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:2: {MISTAKES[line]}"
    examples = read(path, on_bad_row="skip")
    assert (len(examples), examples.skipped) == (2, 1)
    write(path, f"{line}\n")
    with pytest.raises(DataError, match=r"a.jsonl: all 1 rows are bad; the first: .*:1: "):
        read(path, on_bad_row="skip")


def test_lists_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows; expected some"):
        read(write(tmp_path / "a.jsonl", "\n"))


# -- rows --------------------------------------------------------------------------------------------------------------


def test_words_make_a_text() -> None:
    assert join_words(["New York", "is", "big", "."]) == ("New York is big .", [(0, 8), (9, 11), (12, 15), (16, 17)])
    assert join_words(["在", "1", "9", "年", "I", "B", "M"])[0] == "在19年IBM"
    assert join_words(["北京", "的", "IBM", "CEO", "。"])[0] == "北京的 IBM CEO 。"
    assert join_words([]) == ("", [])


def test_documents_and_selections(tmp_path: Path) -> None:
    examples = read(write(tmp_path / "a.txt", "a B-X\nb O\n\nc O\n\nd O\n\n-DOCSTART- O\n\ne O\n"))
    assert examples.documents() == [["a b"], ["c"], ["d"], ["e"]]
    assert group_neighbours(examples.order) == [[0, 1, 2], [3]]
    chosen = examples.select([3, 0, 2])
    assert (chosen.words, chosen.places[1], len(chosen)) == ([["e"], ["a", "b"], ["d"]], examples.places[0], 3)
    assert tags(chosen) == [["O"], ["B-X", "O"], ["O"]]
    # Row 1 was removed, so the sentences before and after it are not neighbours.
    assert group_neighbours(examples.select([0, 2, 3]).order) == [[0], [1], [2]]


def test_a_file_without_documents_is_one_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    examples = read(write(tmp_path / "a.txt", "a B-X\n\nb O\n"))
    with caplog.at_level(logging.WARNING, "cloze"):
        tag_items(examples, TOKENIZER)
        assert caplog.messages == []
        tag_items(examples, TOKENIZER, context=True)
        tag_items(examples, TOKENIZER, context=True)
    assert caplog.messages == [f"{examples.path} has no -DOCSTART- lines: all of it is treated as one document"]


# -- sequences ---------------------------------------------------------------------------------------------------------


def test_tags_stand_at_first_tokens(tmp_path: Path) -> None:
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORED
    examples = read(write(tmp_path / "a.txt", "abc B-X\nd O\n\x01\u200d I-X\nef O\n"))
    (item,) = tag_items(examples, TOKENIZER)
    assert item.encodings[0].tokens == ["[CLS]", "a", "##b", "##c", "d", "[UNK]", "e", "##f", "[SEP]"]
    begin, outside = (examples.labels.indices[name] for name in ("B-X", "O"))
    assert item.target == [IGNORED, begin, IGNORED, IGNORED, outside, begin, outside, IGNORED, IGNORED]


def test_a_model_without_room() -> None:
    with pytest.raises(ConfigError, match="length is 2; expected at least 3"):
        tag_windows(TOKENIZER.with_max_length(2), [[[5]]])


def make_sentences(draw: random.Random, count: int, longest: int) -> list[list[str]]:
    return [
        ["".join(draw.choices(LETTERS, k=draw.choice((1, 1, 2, 3, 9)))) for _ in range(draw.randint(0, longest))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(80))
def test_no_word_is_lost_or_told_twice(seed: int) -> None:
    """Every word is predicted exactly once and in order, for any lengths, window size, stride and grouping."""
    draw = random.Random(seed)
    sentences = make_sentences(draw, draw.randint(1, 12), draw.choice((3, 20, 90)))
    tokenizer = TOKENIZER.with_max_length(draw.choice((3, 4, 7, 16, 64)))
    order = list(range(len(sentences)))
    cuts = sorted(draw.sample(order, draw.randint(0, len(order) - 1))) if seed % 2 else None
    groups = None if cuts is None else [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    step = draw.choice((None, 1, 2, 5, 1000))
    windows = tag_windows(tokenizer, read_words(tokenizer, sentences), groups, step)
    tagged = []
    for window in windows:
        assert len(window.encoding.ids) <= tokenizer.max_length
        assert window.encoding.dropped == 0
        for served in window.served:
            for word, place in enumerate(served.places, start=served.first):
                tagged.append((served.row, word))
                assert window.encoding.tokens[place] == sentences[served.row][word][0]
    assert sorted(tagged) == [(row, word) for row, words in enumerate(sentences) for word in range(len(words))]
    assert [row for row, _ in tagged] == sorted(row for row, _ in tagged)


@pytest.mark.parametrize("seed", range(20))
def test_a_word_is_told_where_it_has_most_context(seed: int) -> None:
    draw = random.Random(seed)
    length, room = draw.randint(30, 200), draw.randint(3, 28)
    step = draw.randint(1, room)
    ids = [[5 + number % 50] for number in range(length)]
    windows = tag_windows(TOKENIZER.with_max_length(room + 2), [ids], None, step)
    starts = range(0, max(1, length - room + step), step)
    for window in windows:
        for served in window.served:
            for word, place in enumerate(served.places, start=served.first):
                least = min(place - 1, len(window.encoding.ids) - 2 - place)
                possible = [
                    min(word - start, min(start + room, length) - 1 - word)
                    for start in starts
                    if start <= word < start + room
                ]
                assert least == max(possible)


def test_a_window_serves_every_sentence_that_it_holds() -> None:
    """Eight-token windows contain every sentence that fits, with context from the same document only.

    The first document has sentences of 3, 3, 3, 12 and 2 tokens, the second a single one.
    """
    sentences = [[[letter]] * count for letter, count in zip(range(5, 11), (3, 3, 3, 12, 2, 1), strict=True)]
    groups = [[0, 1, 2, 3, 4], [5]]
    windows = tag_windows(TOKENIZER.with_max_length(10), sentences, groups)
    encoded = [([served.row for served in window.served], window.encoding.ids[1:-1]) for window in windows]
    a, b, c, d, e, f = range(5, 11)
    assert encoded[0] == ([0, 1], [a] * 3 + [b] * 3 + [c] * 2), "the remaining space is filled with the following text"
    assert encoded[1] == ([2], [b] * 2 + [c] * 3 + [d] * 3), "and with the preceding text"
    assert all(rows == [3] and set(ids) == {d} for rows, ids in encoded[2:-2]), "a long sentence has separate windows"
    assert encoded[-2] == ([4], [d] * 6 + [e] * 2), "at the end, it is filled with the preceding text only"
    assert encoded[-1] == ([5], [f]), "no text comes from another document"
