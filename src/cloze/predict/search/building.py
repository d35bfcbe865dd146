"""``cloze.index``: choose the model, embed documents in parts that survive a kill, and write a segment.

All documents are read once before, to find mistakes before any computing. ``Index.add`` uses the same steps.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as arrow
from pyarrow import parquet

from cloze.checkpoint.pooling_files import DOCUMENT
from cloze.errors import ConfigError, DataError
from cloze.files import replaced_file, replaced_folder, write_json
from cloze.locks import is_ours, only_writer
from cloze.models import vector_model
from cloze.options import IndexSettings, PrecisionName
from cloze.predict.loading import load
from cloze.predict.model import Model
from cloze.predict.quantization.quantize import load_for_service
from cloze.predict.search import segments
from cloze.predict.search.passages import Document, Survey, divide, find_sources, read_documents, stored_value, survey
from cloze.predict.search.query import Rerank
from cloze.predict.search.segments import EXACT_BELOW, FIELD, MANIFEST, SEGMENTS, Floats, Rows
from cloze.progress import Progress, choose_progress
from cloze.resumable import ResumableJob, discard_parts, file_identity
from cloze.tasks.in_memory import TableSource
from cloze.text.boundaries import is_ideograph
from cloze.text.oov.coverage import unknown_note

if TYPE_CHECKING:
    from cloze.predict.search.index import Index

# Documents and characters of a part; a kill loses at most one part.
PART_DOCUMENTS, PART_CHARACTERS = 1024, 2_000_000
# Texts on which int8 is compared with float32, and the share of ideographs from which texts are considered Chinese.
_COMPARED, _CHINESE = 64, 0.3


def index(
    documents: Any,
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Model | None = None,
    settings: IndexSettings | None = None,
    precision: PrecisionName = "auto",
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | bool | None = None,
    **more: Any,
) -> "Index":
    """Build an index of documents for semantic search. Calling it again after an interruption resumes it.

    Args:
        documents: Files (text, Markdown, CSV, TSV, JSONL, Parquet), folders of them, or rows in memory: a data frame,
            a list of dicts, or a list of texts.
        out: The folder for the index.
        model: The model for the vectors; by default, cloze-mini-sentence, or m3e-small for Chinese documents.
        settings: How documents are read and divided.
        precision: Precision of the vectors; auto uses int8 if it is faster and close enough to float32.
        device: cpu, cuda or mps; by default, the best available.
        fresh: Replace an existing index, or start an interrupted one over.
        progress: A listener for progress, True for a bar, False for nothing.
        **more: Fields of ``IndexSettings`` by name, such as ``chunk=200``.

    Returns:
        The index, open for searching.

    Raises:
        DataError: A document is malformed, an id occurs twice, or nothing is left to index.
        ConfigError: There is another index in this place.

    Example:
        >>> index = cloze.index(["a ship at sea", "the price of bread"], "boats", model="all-MiniLM-L6-v2")
        >>> index.search("sailing")[0].passage
        'a ship at sea'
    """
    from cloze.predict.search.index import Index  # which imports this module

    settings = with_settings(settings or IndexSettings(), more)
    root, listener, sources = Path(out), choose_progress(progress), find_sources(documents, settings)
    exists = _is_index(root)
    with only_writer(root):
        surveyed = survey(sources, settings, {}, replace=False)
        found, name = load_model(model, surveyed, device, precision)
        recorded = identity("index", sources, settings, found)
        digest = hashlib.sha256(json.dumps(recorded, sort_keys=True).encode()).hexdigest()
        if exists and not fresh:
            if segments.read_manifest(root).get("built") != digest:
                raise ConfigError(
                    f"{root}: is an index of other documents, or built with other settings; add documents to it with "
                    "--add, build it again with --fresh, or choose another --out"
                )
            discard_parts(root, "--out")  # left by a process that was killed after its last step
            return Index(root, model=found)
        warn_unknown(found, surveyed, listener)

        def join(paths: list[Path], output: Path) -> None:
            with replaced_folder(output) as folder:
                (folder / SEGMENTS / "000001").mkdir(parents=True)
                entry = write_parts(folder / SEGMENTS / "000001", paths, width)
                described = {"source": name, "fingerprint": found.fingerprint, "width": width}
                manifest = {"format": segments.FORMAT, "generation": 1, "built": digest, "settings": asdict(settings)}
                manifest |= {"model": described, "kinds": surveyed.kinds, "segments": [entry]}
                write_json(folder / MANIFEST, manifest)

        width = found.embed_encoded([]).shape[1]
        run_job(root, sources, settings, surveyed, found, recorded, join, listener, fresh=fresh)
    return Index(root, model=found)


def _is_index(root: Path) -> bool:
    """Return whether there is an index in this place; refuse a folder with other files, which would be replaced."""
    if not root.is_dir():
        return False
    others = sorted(path.name for path in root.iterdir() if path.name not in (MANIFEST, SEGMENTS) and not is_ours(path))
    if others:
        raise ConfigError(f"{root}: contains {others[0]!r}, which does not belong to an index; choose another --out")
    return (root / MANIFEST).is_file()


def with_settings(settings: IndexSettings, more: Mapping[str, Any]) -> IndexSettings:
    """Return settings with some fields replaced by name."""
    try:
        return replace(settings, **more)
    except TypeError:
        unknown = next(name for name in more if name not in asdict(settings))
        raise ConfigError(f"unknown setting {unknown!r}; expected one of: {', '.join(asdict(settings))}") from None


def load_model(
    model: str | os.PathLike[str] | Model | None, survey: Survey, device: str | None, precision: PrecisionName
) -> tuple[Model, str]:
    """Return the model and its name, by default the best one for the language of the documents."""
    if isinstance(model, Model):
        place = model._folder.place
        return model, "a model in memory" if place is None else str(place.resolve())
    if model is None:
        text = "".join(survey.sample)
        chinese = sum(map(is_ideograph, text)) > _CHINESE * len(text)
        model = vector_model("zh" if chinese else "en")
    name = os.fspath(model)
    if precision == "auto":
        loaded, _ = load_for_service(name, device=device, paragraphs=lambda: survey.sample[:_COMPARED])
    else:
        loaded = load(name, device=device, precision=precision)
    return loaded, str(Path(name).resolve()) if Path(name).exists() else name


def warn_unknown(model: Model, survey: Survey, progress: Progress) -> None:
    """Warn if the vocabulary of the model does not fit the documents, such as those of another language."""
    note = unknown_note(model.tokenizer, survey.sample)
    if note is not None:
        progress.say(f"warning: {note}")


def identity(action: str, sources: Sequence[TableSource], settings: IndexSettings, model: Model) -> dict[str, Any]:
    """Return everything that must be equal for a job to be resumed."""
    from cloze import __version__

    return {
        "cloze": __version__,
        "action": action,
        "documents": [file_identity(one) if isinstance(one, Path) else [one.recorded()] for one in sources],
        "settings": asdict(settings),
        "model": model.fingerprint,
        "precision": model.precision,
        "part": [PART_DOCUMENTS, PART_CHARACTERS],
    }


def run_job(
    root: Path,
    sources: Sequence[TableSource],
    settings: IndexSettings,
    survey: Survey,
    model: Model,
    identity: Mapping[str, Any],
    join: Callable[[list[Path], Path], None],
    progress: Progress,
    *,
    fresh: bool,
) -> None:
    """Embed all documents in parts and join them."""
    schema, prefix = segments.documents_schema(survey.kinds), model.embedding.prompt(DOCUMENT)

    def write(part: list[Document], path: Path) -> None:
        segments.write_part(path, embed_part(part, model, settings, schema, prefix))

    def join_and_report(paths: list[Path], output: Path) -> None:
        progress.say(f"joining {len(paths)} parts, and indexing their words")
        join(paths, output)

    job = ResumableJob[list[Document]](
        "documents", len, write, join_and_report, identity, ending=".arrow", flag="--out"
    )
    documents = (one for one in read_documents(sources, settings) if one.id not in survey.skipped)
    job.run(_parts(documents), survey.count, root, progress, fresh=fresh)


def _parts(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents; the groups depend on the documents alone, so that finished parts can be skipped."""
    part: list[Document] = []
    characters = 0
    for document in documents:
        part.append(document)
        characters += len(document.text)
        if len(part) == PART_DOCUMENTS or characters >= PART_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def embed_part(documents: Sequence[Document], model: Model, settings: IndexSettings, schema: Any, prefix: str) -> Rows:
    """Divide documents into passages and embed them."""
    divided = divide(documents, model.tokenizer, settings, prefix)
    encodings = [[passage.encoding] for own in divided for passage in own]
    vectors = model.embed_encoded(encodings)
    places = [(row, passage.start, passage.end) for row, own in enumerate(divided) for passage in own]
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        document = documents[places[int(np.argmin(finite))][0]]
        raise DataError(f"{document.place}: the model gave no finite vector for this document; check its training")
    columns: dict[str, list[Any]] = {
        "id": [document.id for document in documents],
        "text": [stored_value(document.text, "text") for document in documents],
        "digest": [document.digest for document in documents],
    }
    kinds = {name: segments.kind_of_column(schema, name) for name in schema.names if name.startswith(FIELD)}
    for name, kind in kinds.items():
        values = (document.fields.get(name.removeprefix(FIELD)) for document in documents)
        columns[name] = [stored_value(value, kind) for value in values]
    table = arrow.Table.from_arrays(
        [arrow.array(columns[name], schema.field(name).type) for name in schema.names], schema=schema
    )
    return Rows(table, np.array(places, np.int64).reshape(-1, 3), unit_length(vectors))


def write_parts(folder: Path, paths: Sequence[Path], width: int) -> dict[str, Any]:
    """Write a segment from the files of all parts."""
    total = sum(len(segments.read_part(path, width).passages) for path in paths)
    parts = (segments.read_part(path, width) for path in paths)
    return segments.write_segment(folder, parts, total, width, EXACT_BELOW)


def unit_length(vectors: Floats) -> Floats:
    """Scale vectors to unit length; zero stays zero."""
    norms = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    scaled: Floats = (vectors / norms).astype(np.float32)
    return scaled


def scorer(rerank: Any) -> Rerank | None:
    """Return a function that scores passages: the given one, or one that asks a model."""
    if not isinstance(rerank, Model):
        return rerank  # type: ignore[no-any-return]

    def score(query: str, passages: Sequence[str]) -> Sequence[float]:
        scores: list[float] = rerank.rerank_scores([query] * len(passages), list(passages)).tolist()
        return scores

    return score


def stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced; empty if there is none."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_mtime_ns, state.st_size


def write_vectors(path: Path, parts: Iterable[Rows]) -> None:
    """Write vectors as a NumPy array, or as Parquet with one row per passage."""
    with replaced_file(path) as temporary:
        if path.suffix == ".npy":
            arrays = [part.vectors for part in parts]
            with temporary.open("wb") as file:  # with a path, np.save would append .npy to the temporary name
                np.save(file, np.concatenate(arrays) if arrays else np.zeros((0, 0), np.float32))
            return
        writer = None
        for part in parts:
            table = _passage_table(part)
            writer = writer or parquet.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        if writer is None:
            raise DataError(f"{path}: the index has no documents, so that there are no vectors to write")
        writer.close()


def _passage_table(part: Rows) -> Any:
    """Return one row per passage: id, start, end, text, the fields of its document, and the vector."""
    owners, starts, ends = part.passages.T
    documents = part.documents.take(arrow.array(owners)).drop_columns(["digest"])
    texts = [
        text[start:end] for text, start, end in zip(documents.column("text").to_pylist(), starts, ends, strict=True)
    ]
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(part.vectors.reshape(-1)), part.vectors.shape[1])
    documents = documents.set_column(1, "text", arrow.array(texts, arrow.large_string()))
    for name, values in (("start", starts), ("end", ends), ("vector", vectors)):
        documents = documents.append_column(name, arrow.array(values) if name != "vector" else values)
    plain = {name: name.removeprefix(FIELD) for name in documents.column_names}
    return documents.rename_columns([name if plain[name] in plain else plain[name] for name in documents.column_names])
