import gzip
import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from transformers import AutoTokenizer, BertTokenizer

from cloze.corpus.learn_vocabulary import learn_vocabulary, lost_marks, train_vocabulary
from cloze.corpus.settings import VocabularySettings
from cloze.errors import ConfigError, DataError
from cloze.progress import Silent
from cloze.text import Tokenizer, word_counts
from cloze.text.word_counts import basic_words

SETTINGS = VocabularySettings(size=200)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_text_gives_same_bytes(text: Path, tmp_path: Path) -> None:
    first = train_vocabulary([text], tmp_path / "first", settings=SETTINGS)
    again = train_vocabulary([text], tmp_path / "again", settings=SETTINGS)
    assert contents(first) == contents(again)
    assert contents(first).keys() == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}


def test_formats_do_not_matter(text: Path, tmp_path: Path) -> None:
    rows = text.read_text(encoding="utf-8").split("\n\n")
    lines = [json.dumps({"body": row, "id": number}) for number, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    parquet.write_table(pyarrow.table({"body": rows}), tmp_path / "a.parquet", row_group_size=17)
    expected = contents(train_vocabulary([text], tmp_path / "plain", settings=SETTINGS))
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        found = train_vocabulary([tmp_path / name], tmp_path / "out", settings=replace(SETTINGS, text="body"))
        assert contents(found) == expected
        with pytest.raises(DataError, match=r"no column 'text'; it has: body.*; choose one with --text"):
            train_vocabulary([tmp_path / name], tmp_path / "out", settings=SETTINGS)
    (tmp_path / "a.jsonl").write_text("\n".join(["no", *lines]), encoding="utf-8")
    skipping = replace(SETTINGS, text="body", on_bad_row="skip")
    assert contents(train_vocabulary([tmp_path / "a.jsonl"], tmp_path / "out", settings=skipping)) == expected


def test_words_of_a_file_get_entries(text: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zebrafish\n\nQuagga\n", encoding="utf-8")
    without = Tokenizer.from_folder(train_vocabulary([text], tmp_path / "without", settings=SETTINGS))
    folder = train_vocabulary([text], tmp_path / "with", words=words, settings=SETTINGS)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer("zebrafish quagga", special=False).tokens == ["zebrafish", "quagga"]
    assert without.id("zebrafish") is None


def test_words_of_a_table_are_its_first_column(text: Path, tmp_path: Path) -> None:
    (tmp_path / "words.tsv").write_text("zebrafish\t12\tfish\n\nquagga\t\n", encoding="utf-8")
    folder = train_vocabulary([text], tmp_path / "with", words=tmp_path / "words.tsv", settings=SETTINGS)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer("zebrafish quagga", special=False).tokens == ["zebrafish", "quagga"]
    assert tokenizer.id("12") is tokenizer.id("fish") is None


def test_file_without_words_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        train_vocabulary([text], tmp_path / "out", words=tmp_path / "none.txt", settings=SETTINGS)
    (tmp_path / "empty.txt").write_text("\n \n\t\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty\.txt: contains no words; expected a word per line"):
        train_vocabulary([text], tmp_path / "out", words=tmp_path / "empty.txt", settings=SETTINGS)
    assert not (tmp_path / "out").exists()


def test_published_layout(text: Path, tmp_path: Path) -> None:
    settings = VocabularySettings(size=300, layout="published", unused=120)
    folder = train_vocabulary([text], tmp_path / "out", settings=settings)
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    places = {0: "[PAD]", 1: "[unused0]", 99: "[unused98]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
    assert {number: pieces[number] for number in places} == places
    assert pieces[104:125] == [f"[unused{number}]" for number in range(99, 120)]
    assert not pieces[125].startswith("[unused")
    assert len(pieces) <= 300


def test_layout_is_looked_at_before_the_text(tmp_path: Path) -> None:
    settings = VocabularySettings(layout="published", unused=98)
    with pytest.raises(ConfigError, match="unused is 98; the published layout has 99 unused entries or more; request"):
        train_vocabulary([tmp_path / "none.txt"], tmp_path / "out", settings=settings)


def test_vocabulary_is_described(text: Path, tmp_path: Path) -> None:
    learned = learn_vocabulary([text], tmp_path / "out", settings=SETTINGS)
    tokenizer = Tokenizer.from_folder(learned.folder)
    lines = text.read_text(encoding="utf-8").split("\n")
    tokens = [token for line in lines for token in tokenizer(line, special=False, max_length=10_000).tokens]
    words = sum(not token.startswith("##") for token in tokens)
    assert (learned.folder, learned.size, learned.cased) == (tmp_path / "out", tokenizer.size, False)
    assert learned.fit.words == words
    assert learned.fit.pieces_per_word == pytest.approx(len(tokens) / words)
    assert learned.fit.coverage == 1


class Listener(Silent):
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int | None]] = []
        self.messages: list[str] = []

    def say(self, message: str) -> None:
        self.messages.append(message)

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        self.heard.append((stage, done, total))


def test_size_of_plain_files_is_known(text: Path, tmp_path: Path) -> None:
    listener = Listener()
    train_vocabulary([text, text], tmp_path / "out", settings=SETTINGS, progress=listener)
    size = 2 * text.stat().st_size
    assert ("counting words (bytes)", size, size) in listener.heard
    compressed = tmp_path / "text.txt.gz"
    compressed.write_bytes(gzip.compress(text.read_bytes()))
    listener = Listener()
    train_vocabulary([text, compressed], tmp_path / "out", settings=SETTINGS, progress=listener)
    assert {total for stage, _, total in listener.heard if stage.startswith("counting")} == {None}


def test_unreadable_text_is_told(text: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    with pytest.raises(DataError, match=r"bad\.txt:2: not valid UTF-8"):
        train_vocabulary([text, tmp_path / "bad.txt"], tmp_path / "out", settings=SETTINGS)


def test_case_is_kept_where_asked(text: Path, tmp_path: Path) -> None:
    settings = VocabularySettings(size=200, cased=True)
    tokenizer = Tokenizer.from_folder(train_vocabulary([text], tmp_path / "cased", settings=settings))
    assert not tokenizer.lowercase
    assert tokenizer.id("T") is not None


def test_text_without_words_teaches_nothing(tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="no words in the text"):
        train_vocabulary([blank], tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out").exists()


def test_only_a_vocabulary_is_replaced(text: Path, tmp_path: Path) -> None:
    folder = train_vocabulary([text], tmp_path / "out", settings=SETTINGS)
    train_vocabulary([text], folder, settings=VocabularySettings(size=120))
    assert Tokenizer.from_folder(folder).size <= 120
    # A folder with a model must not be overwritten by a vocabulary.
    (folder / "model.safetensors").write_bytes(b"weights")
    for place in (folder, text):
        with pytest.raises(DataError, match="exists and is not a vocabulary folder; choose another --out"):
            train_vocabulary([text], place, settings=SETTINGS)
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_size_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="size is 9; a vocabulary needs at least 10 entries"):
        VocabularySettings(size=9)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers is 0; expected at least 1"):
        VocabularySettings(workers=0)
    with pytest.raises(ConfigError, match="unused is -1; expected a number of entries, 0 or more"):
        VocabularySettings(unused=-1)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("\u0939\u093f\u0928\u094d\u0926\u0941 \u0915\u0941\u0932", "Devanagari"),
        ("\u0e01\u0e34\u0e19 \u0e14\u0e37\u0e48\u0e21", "Thai"),
    ],
)
def test_vowel_signs_that_an_uncased_vocabulary_drops_are_told(tmp_path: Path, line: str, script: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text(f"{line}\n" * 30, encoding="utf-8")
    listener = Listener()
    train_vocabulary([path], tmp_path / "uncased", settings=SETTINGS, progress=listener)
    (note,) = (note_text for note_text in listener.messages if "vowel signs" in note_text)
    assert note.startswith(f"{script}: an uncased vocabulary strips vowel signs together with accents")
    listener.messages.clear()
    train_vocabulary([path], tmp_path / "cased", settings=replace(SETTINGS, cased=True), progress=listener)
    path.write_text("caf\u0065\u0301 na\u0069\u0308f\n" * 30, encoding="utf-8")  # decomposed accents
    train_vocabulary([path], tmp_path / "latin", settings=SETTINGS, progress=listener)
    assert not any("vowel signs" in note_text for note_text in listener.messages)


HINDI = "हिन्दी भाषा में पढ़ना और लिखना, किताब।"
THAI = "ประเทศไทย ภาษาที่ดี น้ำดื่ม กินข้าว"
FRENCH = "L'Élève a dû fêter Noël à l'Île: où? ÇA va…"
TURKISH = "İstanbul'da Şık büyük çiçek, Iğdır'ın gölü"
VIETNAMESE = "Tiếng Việt: Đường phố Hà Nội đẹp lắm, người Ơi!"
LANGUAGES = {"Hindi": HINDI, "Thai": THAI, "French": FRENCH, "Turkish": TURKISH, "Vietnamese": VIETNAMESE}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_accents_are_kept_as_by_transformers(form: Any, language: str, tmp_path: Path) -> None:
    line = unicodedata.normalize(form, LANGUAGES[language])
    (tmp_path / "text.txt").write_text(f"{line}\n{line} the ship\n" * 4, encoding="utf-8")
    settings = VocabularySettings(size=400, keep_accents=True)
    learned = learn_vocabulary([tmp_path / "text.txt"], tmp_path / "kept", settings=settings)
    assert (learned.cased, learned.keep_accents) == (False, True)
    ours = Tokenizer.from_folder(learned.folder)
    assert (ours.settings.lowercase, ours.settings.strip_accents) == (True, False)
    theirs = [
        BertTokenizer(str(learned.folder / "vocab.txt"), do_lower_case=True, strip_accents=False),
        AutoTokenizer.from_pretrained(learned.folder),
    ]
    for text in (line, line.upper(), line.lower(), line[::2], f"The {line} SHIP"):
        found = ours(text).tokens
        for tokenizer in theirs:
            assert found == tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    # The words of the text are entries, with all their marks.
    words = [word for word in basic_words(line, True, False) if word[0].isalpha()]
    assert words
    assert all(ours.id(word) is not None for word in words)
    assert "[UNK]" not in ours(line).tokens


@pytest.mark.parametrize("language", ["Hindi", "Thai", "Vietnamese"])
def test_marks_tell_words_apart(language: str, tmp_path: Path) -> None:
    words = {"Hindi": ("कु", "के"), "Thai": ("ดิ", "ดี"), "Vietnamese": ("má", "mà")}[language]
    (tmp_path / "text.txt").write_text(" ".join(words * 9), encoding="utf-8")
    for keep, different in ((True, True), (False, False)):
        settings = VocabularySettings(size=100, keep_accents=keep)
        folder = train_vocabulary([tmp_path / "text.txt"], tmp_path / f"{keep}", settings=settings)
        first, second = (Tokenizer.from_folder(folder)(word).ids for word in words)
        assert (first != second) == different


def test_words_of_a_file_keep_their_accents(text: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Élève\n", encoding="utf-8")
    settings = VocabularySettings(size=200, keep_accents=True)
    folder = train_vocabulary([text], tmp_path / "out", words=tmp_path / "words.txt", settings=settings)
    assert Tokenizer.from_folder(folder)("ÉLÈVE", special=False).tokens == ["élève"]


def test_accents_of_a_cased_vocabulary_are_kept_anyway() -> None:
    message = "^cased and keep_accents are both set, but cased keeps accents anyway; use one of the two$"
    with pytest.raises(ConfigError, match=message):
        VocabularySettings(cased=True, keep_accents=True)


def test_workers_keep_accents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "BLOCK", 40)
    (tmp_path / "text.txt").write_text(f"{VIETNAMESE}\n{HINDI}\n" * 20, encoding="utf-8")
    one, two = (
        train_vocabulary([tmp_path / "text.txt"], tmp_path / f"{workers}", settings=settings)
        for workers in (1, 2)
        if (settings := VocabularySettings(size=300, keep_accents=True, workers=workers))
    )
    assert contents(one) == contents(two)


def test_share_of_the_words_that_lose_marks_is_told(tmp_path: Path) -> None:
    path, listener = tmp_path / "text.txt", Listener()
    path.write_text("कु the ship sails\n" * 40, encoding="utf-8")  # one word in four
    train_vocabulary([path], tmp_path / "out", settings=SETTINGS, progress=listener)
    (note,) = (note_text for note_text in listener.messages if "vowel signs" in note_text)
    assert note == (
        "Devanagari: an uncased vocabulary strips vowel signs together with accents, in 25% of the words, so that "
        "different words become the same; use --keep-accents to lowercase but keep them, or --cased"
    )
    for settings in (VocabularySettings(size=200, keep_accents=True), VocabularySettings(size=200, cased=True)):
        listener = Listener()
        train_vocabulary([path], tmp_path / "out", settings=settings, progress=listener)
        assert not any("vowel signs" in note_text for note_text in listener.messages)


@pytest.mark.parametrize(
    ("word", "scripts"),
    [
        ("がく", ["HIRAGANA"]),  # composed characters, as usual; lowercasing removes the voicing mark
        ("हिन्दु", ["DEVANAGARI", "DEVANAGARI"]),  # the first vowel sign is a spacing mark, which is kept
        ("ที่", ["THAI", "THAI"]),
        ("Élève", []),
        ("йё", []),
        ("ά", []),
        ("❤️", []),
        ("1́", []),
        ("한글", []),
        ("ship", []),
    ],
)
def test_marks_that_are_no_accents(word: str, scripts: list[str]) -> None:
    assert lost_marks(word) == scripts
    stripped = "".join(basic_words(word, True))
    kept = unicodedata.normalize("NFD", "".join(basic_words(word, True, False)))
    if scripts:
        assert len(kept) - len(unicodedata.normalize("NFD", stripped)) == len(scripts)
