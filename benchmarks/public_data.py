"""The data of the benchmarks: download sources, and a small stand-in built from bundled text.

``--data FOLDER`` names the folder with the published data sets, under the names in ``SOURCES``. ``--data small`` uses
small stand-ins instead: the same files with a few hundred rows, built from the public-domain books and open articles of
``cloze demo``. They only show that a benchmark runs; the results do not apply to the published data.
"""

import argparse
import gzip
import json
import lzma
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cloze
from cloze.models import SHIPPED_MODEL, shipped_folder

DEFAULT = Path(__file__).parents[1] / "../shared/data"
SMALL = "small"
DEMO = Path(cloze.__file__).parent / "demo" / "data"
ROWS = {"train": 300, "dev": 100}

# Download source and expected file layout of each data set.
SOURCES = {
    "glue": "GLUE from https://gluebenchmark.com/tasks, unpacked as glue/SST-2/train.tsv and so on",
    "squad": "SQuAD from https://rajpurkar.github.io/SQuAD-explorer, the split of https://github.com/xinyadu/nqg and "
    "XQuAD of https://github.com/google-deepmind/xquad, as squad/*.json",
    "sighan_csc": "SIGHAN 2013 to 2015 from https://github.com/wdimmy/Automatic-Corpus-Generation, as "
    "sighan_csc/sighan15/TestInput.txt and TestTruth.txt",
    "corpus_en": "books from https://github.com/mlschmitt/classic-books-markdown or https://www.gutenberg.org and "
    "textbooks from https://openstax.org, and https://dumps.wikimedia.org/enwiki, as text with a blank line between "
    "documents (.txt.xz), in corpus_en/",
    "corpus_sci": "abstracts from https://www.nsf.gov/awardsearch and https://pmc.ncbi.nlm.nih.gov/tools/openftlist, "
    "as corpus_sci/nsf_awards.txt.xz and corpus_sci/biomed.txt.xz, a blank line between documents",
    "corpus_zh": "Chinese text such as https://dumps.wikimedia.org/zhwiki, as corpus_zh/*.txt.xz",
    "wikitext-2": "WikiText-2 raw from https://huggingface.co/datasets/Salesforce/wikitext, as wikitext-2/test.raw.gz",
    "vocab": "vocab.txt from https://huggingface.co/google-bert/bert-base-uncased, as "
    "vocab/bert-base-uncased-vocab.txt",
    "zh_pairs": "Chinese STS-B and LCQMC from https://github.com/zejunwang1/CSTS, as "
    "zh_pairs/Chinese-STS-B/sts-b-dev.txt and zh_pairs/LCQMC/{dev,test}.txt",
    "zh_qa": "CMRC 2018 from https://github.com/ymcui/cmrc2018 and DRCD from "
    "https://github.com/DRCKnowledgeTeam/DRCD, as zh_qa/cmrc2018_{dev,trial}.json and zh_qa/DRCD_{dev,test}.json",
    "scibert_tasks": "the folder data of https://github.com/allenai/scibert, as scibert_tasks/",
    "chnsenticorp": "ChnSentiCorp from https://github.com/ymcui/Chinese-BERT-wwm, as chnsenticorp/{train,dev}.tsv",
    "bio_ner": "BC5CDR from https://github.com/cambridgeltl/MTL-Bioinformatics-2016, as "
    "bio_ner/BC5CDR-IOB/{train,devel}.tsv",
    "conll2003": "CoNLL-2003 from https://www.clips.uantwerpen.be/conll2003/ner, as conll2003/eng.train and eng.testa",
    "arc": "ARC from https://allenai.org/data/arc, as arc/arc_challenge_dev.csv and so on",
}
_WORDS = re.compile(r"\w+")
# Neutral sentences written for this project, for benchmarks that need Chinese text.
_WHO, _WHEN, _WHAT = (
    ("我们", "老师", "学生", "朋友", "邻居", "医生", "孩子", "工人"),
    ("今天", "昨天", "明天", "早上", "晚上", "夏天", "冬天", "周末"),
    (
        "在公园里散步",
        "在家里看书",
        "去学校上课",
        "坐火车去北京",
        "在河边钓鱼",
        "和家人一起吃饭",
        "在图书馆学习",
        "去市场买水果",
    ),
)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``--data``."""
    parser.add_argument(
        "--data",
        default=str(DEFAULT),
        metavar="FOLDER",
        help="folder with the published data sets; 'small' for a small stand-in built from bundled text",
    )


def find_data(data: str | Path, *needed: str) -> Path:
    """Return the data folder; exit with a message that names the download if a file or folder is missing.

    Args:
        data: The value of ``--data``.
        *needed: Paths below the folder; a compressed file (.xz) is accepted instead of a plain one.
    """
    folder = make_small(Path(tempfile.mkdtemp(prefix="cloze-small-"))) if str(data) == SMALL else Path(data)
    for name in needed:
        if not (folder / name).exists() and not (folder / f"{name}.xz").exists():
            source = SOURCES[Path(name).parts[0]]
            raise SystemExit(f"{folder / name}: missing; download {source}, below --data FOLDER, or try --data small")
    return folder


def is_published(data: str | Path) -> bool:
    """Return whether this folder has the published data, on which the scores next to the scripts were measured."""
    return str(data) != SMALL and Path(data).resolve() == DEFAULT.resolve()


def make_small(folder: Path) -> Path:
    """Write the small stand-in of every data set into a folder, and return it."""
    draw = random.Random(0)
    _write_corpora(folder)
    _write_glue(folder / "glue", draw)
    _write_squad(folder / "squad", draw)
    _write_chinese(folder, draw)
    _write_others(folder, draw)
    return folder


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".xz":
        text = lzma.compress(text)
    elif path.suffix == ".gz":
        text = gzip.compress(text)
    path.write_bytes(text)


def _tabbed(*cells: object) -> str:
    return "\t".join(str(cell) for cell in cells)


def _demo_rows(name: str, split: str) -> list[tuple[str, str]]:
    lines = (DEMO / f"{name}_{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [(line.split("\t")[0], line.split("\t")[1]) for line in lines]
    random.Random(split).shuffle(rows)
    return rows[: ROWS[split]]


def _write_corpora(folder: Path) -> None:
    books, articles = ((DEMO / name).read_bytes() for name in ("books.txt.xz", "articles.txt.xz"))
    for name, contents in {
        "corpus_en/books_en.txt.xz": books,
        "corpus_en/textbooks_ccby.txt.xz": articles,
        "corpus_en/wikipedia_en.txt.xz": articles,
        "corpus_sci/biomed.txt.xz": articles,
        "corpus_sci/nsf_awards.txt.xz": articles,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    documents = [text for text in lzma.decompress(books).decode().split("\n\n") if text.strip()]
    # One "book" per four documents, so that every 25th can be held out.
    sizes = [len(documents[start : start + 4]) for start in range(0, len(documents), 4)]
    index = [f"book {number}\tA docs={size} bytes=0" for number, size in enumerate(sizes)]
    _write(folder / "corpus_en/books_en.index.tsv", index)
    passages = [line for text in documents[:60] for line in ("= Heading =", *text.splitlines()[:6], "")]
    for split in ("train", "valid", "test"):
        _write(folder / f"wikitext-2/{split}.raw.gz", passages)
    model = shipped_folder(SHIPPED_MODEL)
    assert model is not None, "it comes with the package"
    _write(folder / "vocab/bert-base-uncased-vocab.txt", (model / "vocab.txt").read_text(encoding="utf-8").splitlines())


def _pairs(split: str, draw: random.Random) -> Iterator[tuple[str, str, float]]:
    """Yield sentence pairs with the share of the first sentence's words that occur in the second."""
    texts = [text[:200] for text, _ in _demo_rows("order", split)]
    for text in texts:
        words = text.split()
        kept = [word for word in words if draw.random() < 0.7]
        other = " ".join(kept) if draw.random() < 0.5 else draw.choice(texts)
        shared = set(_WORDS.findall(text.lower())) & set(_WORDS.findall(other.lower()))
        yield text, other, len(shared) / max(1, len(set(_WORDS.findall(text.lower()))))


def _write_glue(folder: Path, draw: random.Random) -> None:
    sts = _tabbed(
        *["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"]
    )
    for split in ROWS:
        ordered = [(text, int(label == "in order")) for text, label in _demo_rows("order", split)]
        pairs = list(_pairs(split, draw))
        authors = _demo_rows("authors", split)
        english = {"Charles Dickens", "Arthur Conan Doyle", "Jack London"}
        sst = [_tabbed(text, int(label in english)) for text, label in authors]
        _write(folder / f"SST-2/{split}.tsv", [_tabbed("sentence", "label"), *sst])
        _write(folder / f"CoLA/{split}.tsv", [_tabbed("demo", label, "", text) for text, label in ordered])
        mrpc = [_tabbed(int(share > 0.5), 2 * row, 2 * row + 1, *own) for row, (*own, share) in enumerate(pairs)]
        _write(folder / f"MRPC/{split}.tsv", [_tabbed("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), *mrpc])
        named = ("not_entailment", "entailment")
        rte = [_tabbed(row, *own, named[share > 0.5]) for row, (*own, share) in enumerate(pairs)]
        _write(folder / f"RTE/{split}.tsv", [_tabbed("index", "sentence1", "sentence2", "label"), *rte])
        _write(folder / f"QNLI/{split}.tsv", [_tabbed("index", "question", "sentence", "label"), *rte])
        scores = [
            _tabbed(row, "demo", "demo", 2020, row, "none", "none", *own, f"{5 * share:.3f}")
            for row, (*own, share) in enumerate(pairs)
        ]
        _write(folder / f"STS-B/{split}.tsv", [sts, *scores])


def _write_squad(folder: Path, draw: random.Random) -> None:
    """Write questions about the word that follows two given words; for version 2, as many without an answer."""
    texts = [text for text, _ in _demo_rows("authors", "train")]
    for name, has_unanswerable in {
        "du-split-test-v1.1.json.xz": False,
        "cs224n-dev-v2.0.json.xz": True,
        "xquad.en.json": False,
        "dev-v2.0-first5articles-official-ids.json": True,
    }.items():
        articles = [
            {"title": f"text {number}", "paragraphs": [_paragraph(text, f"{name}-{number}", draw, has_unanswerable)]}
            for number, text in enumerate(texts[:60])
        ]
        _write(folder / name, [json.dumps({"version": "2.0" if has_unanswerable else "1.1", "data": articles})])


def _paragraph(text: str, key: str, draw: random.Random, has_unanswerable: bool) -> dict[str, object]:
    words = list(_WORDS.finditer(text))
    place = draw.randrange(len(words) - 2)
    phrase, answer = text[words[place].start() : words[place + 1].end()], words[place + 2]
    question = {
        "id": f"{key}-0",
        "question": f"Which word follows {phrase!r}?",
        "answers": [{"text": answer.group(), "answer_start": answer.start()}],
    }
    if not has_unanswerable:
        return {"context": text, "qas": [question]}
    without = {"id": f"{key}-1", "question": "Which word follows 'zyx'?", "answers": [], "is_impossible": True}
    return {"context": text, "qas": [question | {"is_impossible": False}, without]}


def _chinese_sentence(draw: random.Random) -> str:
    return f"{draw.choice(_WHEN)}{draw.choice(_WHO)}{draw.choice(_WHAT)}。"


def _write_chinese(folder: Path, draw: random.Random) -> None:
    documents = ["".join(_chinese_sentence(draw) for _ in range(8)) for _ in range(300)]
    _write(folder / "corpus_zh/zh_demo.txt.xz", [line for text in documents for line in (text, "")])
    for year in ("sighan13", "sighan14", "sighan15"):
        rows, truth = [], []
        for number in range(ROWS["dev"]):
            text, key = _chinese_sentence(draw), f"{year}-{number}"
            place = draw.randrange(len(text) - 1)
            is_wrong = number % 2 == 0
            rows.append(_tabbed(f"(pid={key})", text[:place] + "己" + text[place + 1 :] if is_wrong else text))
            truth.append(f"{key}, {place + 1}, {text[place]}" if is_wrong else f"{key}, 0")
        _write(folder / "sighan_csc" / year / "TestInput.txt", rows)
        _write(folder / "sighan_csc" / year / "TestTruth.txt", truth)
    pairs = [(_chinese_sentence(draw), _chinese_sentence(draw)) for _ in range(ROWS["dev"])]
    scored = [_tabbed(one, two, round(5 * len(set(one) & set(two)) / len(set(one)))) for one, two in pairs]
    _write(folder / "zh_pairs/Chinese-STS-B/sts-b-dev.txt", scored)
    for split in ("test", "dev"):
        same = [(one, one if draw.random() < 0.5 else two) for one, two in pairs]
        _write(folder / f"zh_pairs/LCQMC/{split}.txt", [_tabbed(one, two, int(one == two)) for one, two in same])
    for split, count in ROWS.items():
        texts = [_chinese_sentence(draw) for _ in range(count)]
        rows = [_tabbed(int("家" in text or "学" in text), text) for text in texts]
        _write(folder / f"chnsenticorp/{split}.tsv", [_tabbed("label", "text_a"), *rows])

    for name in ("cmrc2018_dev", "cmrc2018_trial", "DRCD_dev", "DRCD_test"):
        articles = [
            {"title": f"文章{number}", "paragraphs": [_chinese_paragraph(f"{name}-{number}", draw)]}
            for number in range(60)
        ]
        _write(folder / f"zh_qa/{name}.json", [json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False)])


def _chinese_paragraph(key: str, draw: random.Random) -> dict[str, object]:
    when, who, what = draw.choice(_WHEN), draw.choice(_WHO), draw.choice(_WHAT)
    context = f"{_chinese_sentence(draw)}{when}{who}{what}。{_chinese_sentence(draw)}"
    answer = {"text": what, "answer_start": context.index(f"{when}{who}{what}") + len(when + who)}
    return {"context": context, "qas": [{"id": key, "question": f"{when}{who}做什么？", "answers": [answer]}]}


def _write_others(folder: Path, draw: random.Random) -> None:
    for split, file in (("train", "eng.train"), ("dev", "eng.testa")):
        authors = _demo_rows("authors", split)
        rows = [json.dumps({"text": text, "label": label}) for text, label in authors]
        for task in ("sci-cite", "chemprot", "citation_intent"):
            _write(folder / f"scibert_tasks/text_classification/{task}/{split}.txt", rows)
        lines, others = ["-DOCSTART- -X- O O", ""], list[str]()
        for text, _ in authors:
            # Capitalized words inside a sentence stand in for names.
            words = _WORDS.findall(text)[:30]
            tags = ["I-PER" if word.istitle() and place else "O" for place, word in enumerate(words)]
            lines += [*(f"{word} X X {tag}" for word, tag in zip(words, tags, strict=True)), ""]
            others += [*(f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True)), ""]
        _write(folder / f"conll2003/{file}", lines)
        _write(folder / f"bio_ner/BC5CDR-IOB/{'devel' if split == 'dev' else split}.tsv", others)
    for name in ("easy_dev", "easy_test", "challenge_dev", "challenge_test"):
        rows = []
        for text, _ in _demo_rows("order", "train")[: ROWS["dev"]]:
            words = [word for word in _WORDS.findall(text) if len(word) > 2]
            if len(words) > 4:
                options = draw.sample(sorted(set(words)), 4) if len(set(words)) > 4 else words[:4]
                right = max(range(4), key=lambda place: len(options[place]))
                rows.append(",".join([f"Which word is the longest: {' '.join(options)}?", *options, "ABCD"[right]]))
        _write(folder / f"arc/arc_{name}.csv", rows)
