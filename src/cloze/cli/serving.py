"""``cloze index``, ``cloze search`` and ``cloze serve``."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.console import Machine, OutputError, Reporter, escape_controls, print_json, print_table, shorten
from cloze.cli.inputs import TEXT_COLUMN, Texts, bundled_paragraphs, gather_texts
from cloze.cli.outputs import check_file, check_folder
from cloze.errors import ConfigError
from cloze.options import IndexSettings, PrecisionName, SearchMode
from cloze.serve.settings import Limits, ServiceSettings, index_model, name_adapters, name_models

if TYPE_CHECKING:
    from cloze.predict.search.index import Index
    from cloze.predict.search.query import Hit

SETTINGS = IndexSettings()
VECTOR_FILES = (".npy", ".parquet")
# Characters shown before and after the first highlighted word of a passage on a terminal.
_BEFORE, _SHOWN = 80, 400


@dataclass(frozen=True)
class IndexChanges:
    """Changes of an existing index. The docstring of a field is its flag's help."""

    add: bool = False
    """Add the documents to an existing index; documents that it has unchanged are skipped."""
    replace: bool = False
    """With --add: replace documents whose id is in the index."""
    delete: list[str] | None = None
    """The id of a document to delete; may be repeated."""
    export: Path | None = None
    """Write the vectors of the index to a file: .parquet with ids and passages, or .npy."""


@dataclass(frozen=True)
class IndexMachine(Machine):
    """Device, threads and precision of building an index."""

    precision: PrecisionName = "auto"
    """Precision of the vectors: auto (int8 if it is faster and close enough to fp32), fp32, bf16 or int8."""


CHANGES, MACHINE, SEARCHING = IndexChanges(), IndexMachine(), Machine()


def index(
    files: Annotated[list[Path] | None, Parameter(help="Text, Markdown, CSV, TSV, JSONL or Parquet; folders.")] = None,
    /,
    *,
    out: Path,
    model: str | None = None,
    settings: Annotated[IndexSettings, Parameter(name="*")] = SETTINGS,
    changes: Annotated[IndexChanges, Parameter(name="*")] = CHANGES,
    fresh: bool = False,
    json: bool = False,
    machine: Annotated[IndexMachine, Parameter(name="*")] = MACHINE,
) -> None:
    """Build an index of documents for semantic search, or change one. Re-running an interrupted command resumes it.

    Args:
        out: The folder of the index.
        model: A model folder, run or hub name; by default, cloze-mini-sentence, or m3e-small for Chinese documents.
        fresh: Replace an existing index, or start an interrupted command over.
        json: Print JSON.
    """
    check_folder(out, "--out")
    _check_flags(files, model, changes, machine)
    if changes.export is not None:
        check_file(changes.export, VECTOR_FILES, "--export")
    if files and not changes.add:
        from cloze.predict.search.building import index as build

        with Reporter() as reporter:
            built = build(
                files,
                out,
                model=model,
                settings=settings,
                precision=machine.precision,
                device=machine.use(),
                fresh=fresh,
                progress=reporter,
            )
    else:
        built = _change(files, out, settings, changes, machine, fresh=fresh)
    if changes.export is not None:
        built.export(changes.export)
    described = {"index": str(out), "documents": len(built), "passages": built.passages, "model": built.model_name}
    if json:
        print_json(described)
    else:
        print(f"{out}: {len(built):,} documents, {built.passages:,} passages, vectors of {built.model_name}")


def _check_flags(files: Sequence[Path] | None, model: str | None, changes: IndexChanges, machine: IndexMachine) -> None:
    """Reject combinations of flags that would have no effect."""
    if not files and not changes.delete and changes.export is None:
        raise ConfigError("no documents; name files or folders, or use --delete or --export with an index")
    if changes.replace and not changes.add:
        raise ConfigError("--replace only applies to documents that are added; use it with --add")
    if changes.add and not files:
        raise ConfigError("--add needs documents; name files or folders")
    if changes.delete and files and not changes.add:
        raise ConfigError("--delete changes an existing index; add documents to it with --add, or leave out --delete")
    if model is not None and (changes.add or not files) and machine.precision == "auto":
        return  # the model of the index has moved
    if machine != MACHINE and not files:
        raise ConfigError("--precision, --device and --threads have no effect without documents; leave them out")


def _change(
    files: Sequence[Path] | None,
    out: Path,
    settings: IndexSettings,
    changes: IndexChanges,
    machine: IndexMachine,
    *,
    fresh: bool,
) -> "Index":
    from cloze.predict.search.index import open_index

    opened = open_index(out)
    if changes.delete:
        opened.delete(changes.delete)
    if files:
        given = {one.name: getattr(settings, one.name) for one in fields(settings)}
        more: dict[str, Any] = {name: value for name, value in given.items() if value != getattr(SETTINGS, name)}
        machine.use()
        with Reporter() as reporter:
            opened.add(files, replace=changes.replace, fresh=fresh, progress=reporter, **more)
    return opened


def search(
    index: Path,
    queries: Texts = None,
    /,
    *,
    input: Path | None = None,  # noqa: A002 (the flag)
    text: str = TEXT_COLUMN,
    top: int = 10,
    where: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    mode: SearchMode = "hybrid",
    exact: bool = False,
    rerank: str | None = None,
    model: str | None = None,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = SEARCHING,
) -> None:
    """Search an index: each result is a document with its best passage.

    Args:
        index: The folder of the index.
        queries: What to look for; by default, the lines of standard input.
        input: A file with one query per line, or a CSV, TSV, JSONL or Parquet file.
        text: The column of --input with the queries.
        top: Number of documents per query.
        where: Conditions on fields of the documents, such as year>=2020 lang=en.
        mode: By meaning (vectors), by words (bm25), or both (hybrid).
        exact: Compare with every vector, instead of using the approximate index of large indexes.
        rerank: A model that scores the best passages again: a cross-encoder of cloze finetune rerank.
        model: The model of the index, if it has moved.
        json: Print JSON, one line per query.
    """
    texts = gather_texts(queries, input, text=text).texts
    device = machine.use()
    from cloze.predict.loading import load
    from cloze.predict.search.index import open_index

    opened = open_index(index, model=None if model is None else load(model, device=device))
    reranker = None if rerank is None else load(rerank, device=device)
    found = opened.search(texts, top, where=where, mode=mode, exact=exact, rerank=reranker)
    if json:
        for query, hits in zip(texts, found, strict=True):
            print_json({"query": query, "results": [vars(hit) for hit in hits]})
    elif sys.stdout.isatty():
        _show(texts, found)
    else:
        rows = [
            (*([query] if len(texts) > 1 else []), rank, f"{hit.score:.4f}", hit.id, " ".join(hit.passage.split()))
            for query, hits in zip(texts, found, strict=True)
            for rank, hit in enumerate(hits, start=1)
        ]
        print_table((*(["query"] if len(texts) > 1 else []), "rank", "score", "id", "passage"), rows)


def _show(texts: Sequence[str], found: "Sequence[Sequence[Hit]]") -> None:
    """Print results on a terminal, with the words of the query in bold."""
    from rich.console import Console

    console = Console()
    for query, hits in zip(texts, found, strict=True):
        if len(texts) > 1:
            console.print(escape_controls(shorten(query)), style="bold", markup=False, highlight=False)
        if not hits:
            console.print("no results", markup=False)
        for rank, hit in enumerate(hits, start=1):
            line = f"{rank:>2}  {hit.score:.4f}  {escape_controls(hit.id)}"
            console.print(line, style="cyan", markup=False, highlight=False)
            console.print(_excerpt(hit), soft_wrap=False)


def _excerpt(hit: "Hit") -> Any:
    """Return the passage, or its part around the first word of the query, with these words highlighted."""
    from rich.text import Text

    first = max(0, hit.highlights[0][0] - _BEFORE) if hit.highlights and len(hit.passage) > _SHOWN else 0
    last = min(len(hit.passage), first + _SHOWN)
    shown, place = Text("    " + ("… " if first else "")), first
    for start, end in hit.highlights:
        if place <= start and end <= last:
            shown.append(_line(hit.passage[place:start])).append(_line(hit.passage[start:end]), style="bold yellow")
            place = end
    return shown.append(_line(hit.passage[place:last])).append(" …" if last < len(hit.passage) else "")


def _line(text: str) -> str:
    return escape_controls(text.replace("\n", " ").replace("\t", " "))


# -- the service ----------------------------------------------------------------------------------------------------

KEY_VARIABLE = "CLOZE_KEY"


@dataclass(frozen=True)
class Access:
    """Access control of the service. The docstring of a field is its flag's help."""

    key: str | None = None
    """Bearer token for requests and password for browsers; the variable CLOZE_KEY hides it from the process list."""
    key_file: Path | None = None
    """A file that holds the key."""
    insecure: bool = False
    """Allow requests without a key even if other machines can reach the host."""
    trust: tuple[str, ...] = ()
    """Host names to accept, in addition to localhost and its addresses; * for any."""

    def find_key(self) -> str | None:
        """Return the key from the flag, the file or the environment; reject two different ones."""
        sources = {"--key": self.key, KEY_VARIABLE: os.environ.get(KEY_VARIABLE)}
        if self.key_file is not None:
            try:
                sources[f"--key-file {self.key_file}"] = self.key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self.key_file}: the key cannot be read ({type(error).__name__})") from error
        for source, key in sources.items():
            # An empty variable or file is a mistake, for instance of a script, and must not disable access control.
            if key is not None and not key.strip():
                remedy = "give a key (openssl rand -hex 24 generates one), or leave it out to need none"
                raise ConfigError(f"{source} is empty; {remedy}")
        keys = {key for key in sources.values() if key is not None}
        if len(keys) > 1:
            raise ConfigError(f"two different keys were given; use one of --key, --key-file and {KEY_VARIABLE}")
        return keys.pop() if keys else None


@dataclass(frozen=True)
class ServingMachine(Machine):
    """Device, threads and precision of a service."""

    precision: PrecisionName | None = None
    """fp32, bf16, int8 or auto; by default auto on a CPU (int8 if it is faster and accurate enough), else fp32."""


KEYLESS, LIMITS, HERE = Access(), Limits(), ServingMachine()


def serve(
    folders: Annotated[
        list[str] | None, Parameter(help="Model folders or runs, each served under the folder's name or as NAME=DIR.")
    ] = None,
    /,
    *,
    adapter: list[str] | None = None,
    index: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    json: bool = False,
    access: Annotated[Access, Parameter(name="*")] = KEYLESS,
    limits: Annotated[Limits, Parameter(name="*")] = LIMITS,
    machine: Annotated[ServingMachine, Parameter(name="*")] = HERE,
) -> None:
    """Serve models over HTTP, with pages to try them in a browser, until interrupted.

    Args:
        adapter: An adapter for one of the models, as NAME=DIR; may be repeated.
        index: An index to search at /search; without a model, its own is served.
        host: The address to listen on; an address that other machines can reach needs --key.
        port: The port to listen on; 0 for any free port.
        json: Print the address as JSON.
    """
    if index is not None:
        folders = folders or [index_model(index)]
    models = name_models(folders or [])
    settings = ServiceSettings(
        models,
        name_adapters(adapter or [], models),
        host,
        port,
        access.find_key(),
        access.insecure,
        access.trust,
        limits,
        None if index is None else str(index),
    )
    from cloze.serve.server import serve as run

    def print_address(bound_port: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound_port}"
        names = [*settings.models, *settings.adapters]
        message = f"{', '.join(names)} at {address} (Ctrl-C to stop)"
        try:
            if json:
                print_json({"address": address, "models": names})
            else:
                print(message)
            sys.stdout.flush()
        except (OutputError, BrokenPipeError):  # a full disk or a closed pipe; the service works without it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            print(f"cloze: note: standard output cannot be written; {message}", file=sys.stderr)

    def say(line: str) -> None:
        print(f"cloze: {line}", file=sys.stderr, flush=True)

    run(
        settings,
        device=machine.use(),
        precision=machine.precision,
        paragraphs=bundled_paragraphs,
        say=say,
        on_start=print_address,
    )
