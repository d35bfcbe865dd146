"""Search in an index: build rate against sentence-transformers and faiss, latency, recall, memory, ranking quality.

    python benchmarks/index.py rate                       2,000 passages, in turns with sentence-transformers and faiss
    python benchmarks/index.py large --passages 200000    one index: latency, recall@10 against exact search, memory
    python benchmarks/index.py modes                      nDCG@10 of vectors, BM25 and both, on questions
    python benchmarks/index.py graphs --passages 40000    approximate indexes of usearch and faiss: rate, size, recall

``rate``, ``large`` and ``graphs`` use paragraphs of Wikipedia, ``modes`` the questions and paragraphs of SQuAD and CMRC
2018. The peer computes in float32 with its own defaults (batches of 32) and adds the vectors to an HNSW index of faiss;
cloze writes its complete index, with BM25 and a graph of the same size. Needs the extras dev and bench.
"""

import argparse
import json
import lzma
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import cloze
from cloze.predict import load
from cloze.predict.search import building, segments
from cloze.predict.search.index import Index, open_index
from cloze.predict.search.passages import Survey
from cloze.tasks.intervals import MeanRows, bootstrap_intervals, paired_difference
from cloze.text.boundaries import split_sentences
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

Floats = NDArray[np.float32]
WIKIPEDIA = "corpus_en/wikipedia_en.txt"
QUESTIONS = {
    "SQuAD, English": ("squad/cs224n-dev-v2.0.json.xz", "all-MiniLM-L6-v2"),
    "CMRC 2018, Chinese": ("zh_qa/cmrc2018_dev.json.xz", "m3e-small"),
}
# Characters of a paragraph that becomes a passage, and tokens, so that each is one passage in both libraries.
SHORTEST, LONGEST, TOKENS = 100, 1000, 254
MODES = ("vectors", "bm25", "hybrid")


def paragraphs(data: Path) -> Iterator[str]:
    """Yield paragraphs of Wikipedia."""
    path = data / f"{WIKIPEDIA}.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if SHORTEST <= len(line) <= LONGEST:
                yield line.strip()


def passages_and_queries(data: Path, passages: int, queries: int) -> tuple[list[str], list[str]]:
    """Return passages, and as queries the first sentences of other paragraphs, spread over the same text."""
    found: list[str] = []
    asked: list[str] = []
    every = max(2, passages // queries)
    for number, paragraph in enumerate(paragraphs(data)):
        if number % every == every - 1 and len(asked) < queries:
            asked.append(split_sentences(paragraph)[0])
        else:
            found.append(paragraph)
        if len(found) == passages:
            break
    return found, asked


def build(texts: Sequence[str], folder: Path, precision: Any) -> float:
    """Build an index with a graph, and return the seconds."""
    rows = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    shutil.rmtree(folder, ignore_errors=True)
    model, _ = building.load_model(
        str(minilm()), cloze.predict.search.passages.Survey(sample=list(texts[:64])), None, precision
    )
    start = time.perf_counter()
    with patch.object(building, "EXACT_BELOW", 1):
        cloze.index(rows, folder, model=model, chunk=TOKENS, overlap=0, progress=False)
    return time.perf_counter() - start


def peer(folder: Path) -> Callable[[Sequence[str]], float]:
    """Return a function that embeds texts with sentence-transformers, adds them to faiss and returns the seconds."""
    import faiss
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    faiss.omp_set_num_threads(torch.get_num_threads())

    def run(texts: Sequence[str]) -> float:
        start = time.perf_counter()
        vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        index = faiss.IndexHNSWFlat(vectors.shape[1], segments.CONNECTIVITY, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = segments.BUILD_WIDTH
        index.add(np.asarray(vectors, np.float32))
        return time.perf_counter() - start

    return run


def rate(arguments: argparse.Namespace) -> None:
    """Print the build rates, measured in turns."""
    texts, _ = passages_and_queries(arguments.data, arguments.passages, 1)
    other, seconds = peer(minilm()), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "index"
        ways: dict[str, Callable[[], float]] = {
            "cloze int8": lambda: build(texts, place, "int8"),
            "cloze fp32": lambda: build(texts, place, "fp32"),
            "sentence-transformers + faiss": lambda: other(texts),
        }
        for turn in range(arguments.rounds):
            for way in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                seconds.setdefault(way, []).append(ways[way]())
    base = np.array(seconds["sentence-transformers + faiss"])
    for way, times in seconds.items():
        ratios = ", ".join(f"{ratio:.2f}" for ratio in base / np.array(times))
        print(f"{way:<30} {len(texts) / np.median(times):8.1f} passages/s   ratios {ratios}")


def large(arguments: argparse.Namespace) -> None:
    """Build one index, unless it is there already, and print latency, recall and memory."""
    texts, queries = passages_and_queries(arguments.data, arguments.passages, arguments.queries)
    folder = Path(arguments.index or tempfile.mkdtemp(prefix="cloze-index-"))
    if not (folder / "index.json").exists():
        rows = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
        start = time.perf_counter()
        index = cloze.index(rows, folder, model=str(minilm()), chunk=TOKENS, overlap=0)
        seconds = time.perf_counter() - start
        print(f"built in {seconds:.0f} s: {len(texts) / seconds:.1f} passages/s, {index}", flush=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"on disk {size / 2**20:,.0f} MB for {sum(map(len, texts)) / 2**20:,.0f} MB of text", flush=True)
    (folder.parent / "queries.json").write_text(json.dumps(queries), encoding="utf-8")
    command = [sys.executable, __file__, "search", "--index", str(folder)]
    subprocess.run(command, check=True)


def search(arguments: argparse.Namespace) -> None:
    """Print latency, recall and memory of an index, in a process that did not build it."""
    folder = Path(arguments.index)
    queries = json.loads((folder.parent / "queries.json").read_text(encoding="utf-8"))
    index, before = open_index(folder), memory()
    vectors = index.embed_queries(queries)
    loaded = memory()
    print(f"{len(index):,} documents, {len(queries)} queries, {torch.get_num_threads()} threads")
    for mode in MODES:
        times = [timed(partial(index.search, query, 10, mode=mode))[0] for query in queries]
        lookups = [lookup(index, query, vector, mode)[0] for query, vector in zip(queries, vectors, strict=True)]
        print(f"{mode:<8} with the query's vector {shown(times)}   lookup alone {shown(lookups)}", flush=True)
    exact_times, shared = [], 0
    for query, vector in zip(queries, vectors, strict=True):
        seconds, exact = lookup(index, query, vector, "vectors", exact=True)
        exact_times.append(seconds)
        shared += len(exact & lookup(index, query, vector, "vectors")[1])
    print(f"exact    lookup alone {shown(exact_times)}")
    print(f"recall@10 of the graph against exact search: {shared / 10 / len(queries):.4f}")
    print(f"memory (RSS / anonymous MB): opened {before}, with the model {loaded}, after all searches {memory()}")


def lookup(index: Index, query: str, vector: Floats, mode: Any, *, exact: bool = False) -> tuple[float, set[str]]:
    """Search with a vector; return the seconds and the ids."""
    given = None if mode == "bm25" else vector[None]
    seconds, found = timed(lambda: index.search_vectors([query], given, 10, mode=mode, exact=exact))
    return seconds, {hit.id for hit in found[0]}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def shown(seconds: Sequence[float]) -> str:
    """Return p50 and p99 in milliseconds."""
    return f"p50 {1000 * np.median(seconds):6.1f} ms, p99 {1000 * np.quantile(seconds, 0.99):6.1f} ms"


def memory() -> str:
    """Return resident and anonymous memory of this process in MB; mapped files count in the first only."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return " / ".join(f"{int(lines[name].split()[0]) / 1024:,.0f}" for name in ("VmRSS", "RssAnon"))


def read_questions(path: Path) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the paragraphs by id, and (question, id of its paragraph)."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    texts: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    for article in json.loads(content)["data"]:
        for paragraph in article["paragraphs"]:
            name = str(len(texts))
            texts[name] = paragraph["context"]
            asked += [(qa["question"], name) for qa in paragraph["qas"] if qa["answers"]]
    return texts, asked


def modes(arguments: argparse.Namespace) -> None:
    """Print nDCG@10 of each mode, with intervals, and the differences of hybrid to the others."""
    for name, (path, model) in QUESTIONS.items():
        if not (arguments.data / path).exists():
            continue
        texts, asked = read_questions(arguments.data / path)
        asked = asked[:: max(1, len(asked) // arguments.queries)]
        rows = [{"id": key, "text": text} for key, text in texts.items()]
        for chunk in arguments.chunks:
            with tempfile.TemporaryDirectory() as folder:
                overlap = min(32, chunk // 4)
                index = cloze.index(
                    rows, Path(folder) / "index", model=load(model), chunk=chunk, overlap=overlap, progress=False
                )
                _print_modes(f"{name}, {len(texts):,} paragraphs, {index.passages:,} passages of {chunk}", index, asked)


def _print_modes(title: str, index: Index, asked: Sequence[tuple[str, str]]) -> None:
    queries = [question for question, _ in asked]
    vectors = index.embed_queries(queries)
    scores: dict[str, MeanRows] = {}
    print(f"{title}, {len(asked):,} questions")
    for mode in MODES:
        found = index.search_vectors(queries, None if mode == "bm25" else vectors, 10, mode=mode)  # type: ignore[arg-type]
        places = [
            next((rank for rank, hit in enumerate(hits, start=1) if hit.id == right), None)
            for hits, (_, right) in zip(found, asked, strict=True)
        ]
        values = {
            "ndcg@10": [0.0 if place is None else 1 / math.log2(place + 1) for place in places],
            "recall@10": [float(place is not None) for place in places],
        }
        scores[mode] = MeanRows(values)
        intervals = bootstrap_intervals(scores[mode])
        columns = [
            f"{key} {100 * np.mean(values[key]):.1f} ({100 * low:.1f} to {100 * high:.1f})"
            for key, (low, high) in intervals.items()
        ]
        print(f"  {mode:<8} {'   '.join(columns)}")
    for mode in MODES[:2]:
        difference = paired_difference(scores["hybrid"], scores[mode], "ndcg@10")
        print(f"  hybrid - {mode}: {difference}", flush=True)


def graphs(arguments: argparse.Namespace) -> None:
    """Print build rate, size, recall@10 after scoring 100 candidates again, and latency of approximate indexes."""
    texts, queries = passages_and_queries(arguments.data, arguments.passages, arguments.queries)
    model, _ = building.load_model(str(minilm()), Survey(sample=texts[:64]), None, "auto")
    vectors, asked = (building.unit_length(model.embed(some)) for some in (texts, queries))
    best = [set(np.argsort(-(vectors @ query), kind="stable")[:10].tolist()) for query in asked]
    for name, make in {**_usearch_graphs(vectors), **_faiss_graphs(vectors)}.items():
        start = time.process_time()
        size, find = make()
        built, times, shared = time.process_time() - start, [], 0
        for query, right in zip(asked, best, strict=True):
            start = time.process_time()
            rows = find(query)
            found = rows[np.argsort(-(vectors[rows] @ query))[:10]]
            times.append(time.process_time() - start)
            shared += len(right & set(found.tolist()))
        recall = shared / 10 / len(best)
        print(
            f"{name:<16} {len(vectors) / built:7.0f} vectors/s  {size >> 20:4} MB  recall {recall:.4f}  {shown(times)}",
            flush=True,
        )


Find = Callable[[Floats], NDArray[np.int64]]


def _usearch_graphs(vectors: Floats) -> dict[str, Callable[[], tuple[int, Find]]]:
    from usearch.index import Index as Graph

    def make(dtype: str) -> tuple[int, Find]:
        graph = Graph(
            ndim=vectors.shape[1],
            metric="ip",
            dtype=dtype,
            connectivity=segments.CONNECTIVITY,
            expansion_add=segments.BUILD_WIDTH,
            expansion_search=segments.SEARCH_WIDTH,
            enable_key_lookups=False,
        )
        graph.add(np.arange(len(vectors)), vectors, threads=1)
        return graph.serialized_length, lambda query: graph.search(query, 100, threads=1).keys.astype(np.int64)

    return {f"usearch {dtype}": partial(make, dtype) for dtype in ("i8", "bf16", "f16", "f32")}


def _faiss_graphs(vectors: Floats) -> dict[str, Callable[[], tuple[int, Find]]]:
    faiss: Any = import_module("faiss")
    faiss.omp_set_num_threads(1)

    def make(description: str) -> tuple[int, Find]:
        index: Any = faiss.index_factory(vectors.shape[1], description, faiss.METRIC_INNER_PRODUCT)
        if "HNSW" in description:
            index.hnsw.efConstruction, index.hnsw.efSearch = segments.BUILD_WIDTH, segments.SEARCH_WIDTH
        else:
            index.nprobe = 32
        index.train(vectors)
        index.add(vectors)

        def find(query: Floats) -> NDArray[np.int64]:
            ids: NDArray[np.int64] = index.search(query[None], 100)[1][0]
            return ids[ids >= 0]

        return len(faiss.serialize_index(index)), find

    return {f"faiss {name}": partial(make, name) for name in ("HNSW16_SQfp16", "HNSW16", "IVF256,SQ8")}


def main() -> None:
    """Parse the arguments and run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rate", "large", "modes", "graphs", "search"))
    add_data(parser)
    parser.add_argument("--passages", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="+", default=[128], help="for modes: tokens per passage")
    parser.add_argument("--index", help="for large: where to build the index, or an index that is there already")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.what != "search":
        needed = ("squad",) if arguments.what == "modes" else (WIKIPEDIA,)
        arguments.data = find_data(arguments.data, *needed)
    {"rate": rate, "large": large, "modes": modes, "graphs": graphs, "search": search}[arguments.what](arguments)


if __name__ == "__main__":
    main()
