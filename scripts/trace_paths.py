"""List the project files that execute on each main path, by running it and recording every call.

    python scripts/trace_paths.py [--all] [STAGE...]

Each stage is one real call of the public API on a small text. It runs twice: the first run imports everything and fills
the caches, the second is recorded with ``sys.settrace`` in every thread. A file counts if at least eight different
lines of its functions run; importing it is not enough.

A stage ends where another stage begins: a call to a *border*, the entry point of another stage, is shown as that
stage's name, and the files that it runs belong to that stage. With ``--all``, they belong to the calling stage as well.
"""

import argparse
import asyncio
import functools
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cloze
from cloze.tasks.reports import write_report

SOURCES = Path(cloze.__file__).parent
LIMIT = 8  # maximum number of files per stage
# A file in which fewer distinct lines run is only touched (an accessor, a check); a reader of the path can skip it.
FEWEST_LINES = 8
TraceFunction = Callable[[FrameType, str, Any], Any]

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SENTENCES = [f"The {first} men met the {second} dogs near river {first}." for first in WORDS for second in WORDS]


VOCABULARY = cloze.VocabularySettings(size=120, workers=1)
PRETRAINING = cloze.PretrainSettings(preset="tiny", steps=2, batch_size=8, max_length=32)
FINETUNING = cloze.FinetuneSettings(epochs=1, max_length=32)


@dataclass(frozen=True)
class Stage:
    """One main path.

    Attributes:
        run: Makes the call, in a work folder in which the previous stages have run.
        roots: Functions ("module:qualified.name") whose calls are recorded; empty to record everything.
        borders: Entry points of other stages, by the name of that stage.
        entry: The functions through which other stages call this stage.
    """

    run: "Callable[[Workspace], object]"
    roots: tuple[str, ...] = ()
    borders: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()


class Workspace:
    """A temporary folder with a text, a table, and the outputs of the stages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0
        self.text, self.table = folder / "text.txt", folder / "rows.csv"
        documents = ["\n".join(SENTENCES[start : start + 5]) for start in range(0, len(SENTENCES), 5)]
        self.text.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        rows = [f"{sentence},{'even' if number % 2 else 'odd'}" for number, sentence in enumerate(SENTENCES)]
        self.table.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
        self.vocabulary, self.data, self.model, self.tuned = (
            folder / name for name in ("vocabulary", "data", "pretrained/model", "finetuned/model")
        )

    def fresh(self, name: str) -> Path:
        """Return a folder that no run has used yet."""
        self.runs += 1
        return self.folder / f"{name}-{self.runs}"

    def make(self) -> None:
        """Run the whole pipeline once, so that every stage has its input."""
        train_vocabulary(self, self.vocabulary)
        prepare(self, self.data)
        pretrain(self, self.model.parent)
        finetune(self, self.tuned.parent)


def train_vocabulary(work: Workspace, out: Path | None = None) -> None:
    """Text -> vocabulary."""
    cloze.train_vocabulary([work.text], out or work.fresh("vocabulary"), settings=VOCABULARY)


def prepare(work: Workspace, out: Path | None = None) -> None:
    """Text -> shards."""
    cloze.prepare([work.text], work.vocabulary, out or work.fresh("data"))


def pretrain(work: Workspace, out: Path | None = None) -> None:
    """Shards -> loss -> checkpoint: two steps."""
    cloze.pretrain(work.data, out or work.fresh("pretrained"), settings=PRETRAINING)


def finetune(work: Workspace, out: Path | None = None) -> None:
    """CSV rows -> fine-tuned model."""
    source = cloze.Source("classify", work.table, work.table)
    cloze.finetune(source, work.model, out or work.fresh("finetuned"), settings=FINETUNING)


def evaluate(work: Workspace) -> None:
    """Rows -> metric."""
    cloze.evaluate(work.tuned, cloze.Source("classify", work.table))


def report(work: Workspace) -> None:
    """Metric -> report."""
    write_report(cloze.evaluate(work.tuned, cloze.Source("classify", work.table)), work.fresh("scores"))


def encode(work: Workspace) -> None:
    """Text -> ids."""
    tokenizer(work).encode_batch(SENTENCES[:3])


@functools.cache
def tokenizer(work: Workspace) -> Any:
    """Return the tokenizer with the vocabulary that the vocabulary stage trained."""
    return cloze.load(work.model).tokenizer


def load(work: Workspace) -> None:
    """Folder -> model."""
    cloze.load(work.model)


def save(work: Workspace) -> None:
    """Contents -> disk: a model folder."""
    cloze.load(work.model).save(work.fresh("saved"))


def embed(work: Workspace) -> None:
    """Texts -> vectors, from Python."""
    cloze.load(work.model).embed(SENTENCES[:3])


def request(work: Workspace) -> None:
    """HTTP request -> vector, through the whole ASGI app in this process, without a socket."""
    asyncio.run(_post(service_app(work)))


@functools.cache
def service_app(work: Workspace) -> Any:
    """Yield the service's ASGI app, with its threads running."""
    from cloze.serve.models import load_models
    from cloze.serve.outcomes import Metrics
    from cloze.serve.server import make_app
    from cloze.serve.service import Service
    from cloze.serve.settings import ServiceSettings

    settings, metrics = ServiceSettings({"base": str(work.model)}), Metrics()
    service = Service(settings, load_models(settings, metrics, precision="fp32"), metrics)
    service.models.start()
    return make_app(service)


async def _post(app: Any) -> None:
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        (await client.post("/embed", json={"texts": SENTENCES[:2]})).raise_for_status()


STAGES: dict[str, Stage] = {
    "text -> vocabulary": Stage(train_vocabulary, borders=("folder -> tokenizer", "contents -> disk")),
    "text -> ids": Stage(
        encode,
        entry=(
            "cloze.text.tokenizer:Tokenizer.encode_batch",
            "cloze.text.tokenizer:Tokenizer.encode_pieces",
            "cloze.text.tokenizer:Tokenizer.encode_ids",
        ),
    ),
    "text -> shards": Stage(prepare, borders=("text -> ids", "folder -> tokenizer", "contents -> disk")),
    "shards -> loss": Stage(
        pretrain,
        roots=(
            "cloze.corpus.batches:PretrainingBatches.at",
            "cloze.train.pretraining.objectives.masked:PretrainingObjective.forward",
        ),
        borders=("batch -> states",),
        entry=(
            "cloze.corpus.batches:PretrainingBatches.at",
            "cloze.train.pretraining.objectives.masked:PretrainingObjective.forward",
        ),
    ),
    "batch -> states": Stage(
        embed,
        roots=("cloze.model.encoder:Encoder.forward",),
        entry=("cloze.model.bert:Bert.forward", "cloze.model.encoder:Encoder.forward"),
    ),
    "loss -> checkpoint": Stage(
        pretrain,
        roots=("cloze.train.loop:train",),
        borders=("shards -> loss", "batch -> states", "contents -> disk"),
        entry=(
            "cloze.train.loop:train",
            "cloze.hardware:keep_freed_memory",
            "cloze.train.run:Run.open",
            "cloze.train.run:Run.report_finished",
            "cloze.train.run:Run.finish",
        ),
    ),
    "folder -> model": Stage(
        load,
        entry=(
            "cloze.predict.loading:load",
            "cloze.models:find_source",
            "cloze.predict.base_model:BaseModel.__init__",
            "cloze.model.surgery:with_heads",
            "cloze.checkpoint.adapter_folder:base_files",
            "cloze.checkpoint.folder:load_folder",
            "cloze.checkpoint.folder:save_folder",
        ),
        borders=("folder -> tokenizer",),
    ),
    "folder -> tokenizer": Stage(
        load,
        roots=("cloze.text.tokenizer:Tokenizer.from_folder",),
        entry=(
            "cloze.text.tokenizer:Tokenizer.from_folder",
            "cloze.text.tokenizer:Tokenizer.from_vocabulary",
            "cloze.text.tokenizer:Tokenizer.save",
        ),
    ),
    "file -> examples": Stage(
        evaluate,
        roots=("cloze.tasks.registry:read_examples",),
        entry=(
            "cloze.tasks.rows:Source.__post_init__",
            "cloze.tasks.registry:read_task",
            "cloze.tasks.registry:read_examples",
        ),
    ),
    "CSV row -> fine-tuned model": Stage(
        finetune,
        roots=("cloze.train.finetuning.finetune:run_finetuning",),
        borders=(
            "file -> examples",
            "text -> ids",
            "folder -> model",
            "loss -> checkpoint",
            "rows -> metric",
            "rows -> baseline",
            "metric -> report",
            "contents -> disk",
            "step -> memory",
        ),
    ),
    "step -> memory": Stage(
        finetune,
        roots=("cloze.train.driver:require_step_memory",),
        entry=("cloze.train.driver:require_step_memory",),
    ),
    "rows -> metric": Stage(
        evaluate,
        borders=("file -> examples", "text -> ids", "folder -> model", "batch -> states", "rows -> baseline"),
        entry=("cloze.predict.evaluation:evaluate_examples",),
    ),
    "rows -> baseline": Stage(
        finetune,
        roots=("cloze.tasks.baselines:baseline_scores",),
        entry=(
            "cloze.tasks.baselines:baseline_scores",
            "cloze.tasks.baselines:fit_constant",
            "cloze.tasks.baselines:compare_with_floor",
        ),
    ),
    "metric -> report": Stage(
        report,
        roots=("cloze.tasks.reports:write_report",),
        borders=("contents -> disk",),
        entry=(
            "cloze.tasks.reports:write_report",
            "cloze.tasks.reports:card_scores",
            "cloze.tasks.comparisons:write_resamples",
        ),
    ),
    "sequences -> vectors": Stage(
        embed,
        roots=("cloze.predict.base_model:BaseModel.embed_encoded",),
        borders=("batch -> states",),
        entry=("cloze.predict.base_model:BaseModel.embed_encoded",),
    ),
    "contents -> disk": Stage(
        save,
        roots=("cloze.files:replaced_folder", "cloze.files:replaced_file"),
        entry=(
            "cloze.files:replaced_folder",
            "cloze.files:replaced_file",
            "cloze.files:replace_json",
            "cloze.files:replace_json_lines",
            "cloze.files:check_replaceable",
            "cloze.locks:only_writer",
            "cloze.locks:locked",
            "cloze.locks:aside_name",
            "cloze.locks:delete",
        ),
    ),
    "request -> vector": Stage(request, borders=("text -> ids", "sequences -> vectors")),
}

# Stages whose number of files the architecture limits; the remaining stages are shared parts of these.
MAIN_PATHS = (
    "text -> vocabulary",
    "text -> shards",
    "shards -> loss",
    "loss -> checkpoint",
    "CSV row -> fine-tuned model",
    "rows -> metric",
    "rows -> baseline",
    "metric -> report",
    "request -> vector",
)


@dataclass
class Recorder:
    """Trace function that records the executed lines of the project's functions while it is enabled."""

    roots: frozenset[CodeType] = frozenset()
    borders: dict[CodeType, str] = field(default_factory=dict)
    on: bool = False
    lines: dict[str, set[int]] = field(default_factory=dict)
    crossed: set[str] = field(default_factory=set)
    _threads: threading.local = field(default_factory=threading.local)

    @property
    def files(self) -> list[str]:
        """Files that do part of the work; settings modules only hold and check values, so they are excluded."""
        return sorted(
            path
            for path, lines in self.lines.items()
            if len(lines) >= FEWEST_LINES and Path(path).name not in {"settings.py", "options.py"}
        )

    @property
    def touched(self) -> list[str]:
        """Files in which only an accessor or a check ran."""
        return sorted(self.lines.keys() - set(self.files))

    def __call__(self, frame: FrameType, event: str, argument: object) -> "TraceFunction | None":  # noqa: ARG002
        """Decide at each call whether to follow it; the returned function receives the later events of that frame."""
        if not self.on or event != "call":
            return None
        state, code = self._threads.__dict__, frame.f_code
        if code in self.roots:
            state["rooted"] = state.get("rooted", 0) + 1
            return functools.partial(self._follow, "rooted")
        if self.roots and not state.get("rooted", 0):
            return None
        if code in self.borders:
            self.crossed |= {self.borders[code]} if not state.get("beyond", 0) else set()
            state["beyond"] = state.get("beyond", 0) + 1
            return functools.partial(self._follow, "beyond")
        return None if state.get("beyond", 0) or not is_project_function(code) else functools.partial(self._follow, "")

    def _follow(self, counter: str, frame: FrameType, event: str, argument: object) -> "TraceFunction":  # noqa: ARG002
        if event == "return" and counter:
            self._threads.__dict__[counter] -= 1
        if event == "line" and counter != "beyond" and is_project_function(frame.f_code):
            self.lines.setdefault(str(Path(frame.f_code.co_filename).relative_to(SOURCES)), set()).add(frame.f_lineno)
        return functools.partial(self._follow, counter)


@functools.cache
def is_project_function(code: CodeType) -> bool:
    """Return whether this is a project function; module and class bodies, which run at import, are not optimized."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and SOURCES in Path(code.co_filename).parents


def code_of(name: str) -> CodeType:
    """Return the code object of "module:qualified.name"."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    code: CodeType = inspect.unwrap(getattr(found, "__func__", found)).__code__
    return code


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record this thread and all threads that it starts."""
    sys.settrace(recorder)
    recorder.on = True
    try:
        yield
    finally:
        recorder.on = False
        sys.settrace(None)


def trace(work: Workspace, stage: Stage, *, across: bool = False) -> Recorder:
    """Run a stage twice and record the second time."""
    others = {} if across else {code_of(entry): name for name in stage.borders for entry in STAGES[name].entry}
    recorder = Recorder(frozenset(map(code_of, stage.roots)), others)
    threading.settrace(recorder)  # threads started by the first run are still alive and are recorded in the second run
    stage.run(work)
    with recording(recorder):
        stage.run(work)
    threading.settrace(None)
    return recorder


def trace_all(names: list[str] | None = None, *, across: bool = False) -> dict[str, Recorder]:
    """Trace these stages, or all, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        work = Workspace(Path(folder))
        work.make()
        return {name: trace(work, STAGES[name], across=across) for name in names or STAGES}


def print_paths(traced: dict[str, Recorder]) -> None:
    """Print the files of each stage."""
    for name, stage in traced.items():
        calls = f"; calls {', '.join(sorted(stage.crossed))}" if stage.crossed else ""
        print(f"\n{name}: {len(stage.files)} files{calls}")
        for path in stage.files:
            print(f"  {path} ({len(stage.lines[path])} lines)")
        if stage.touched:
            print(f"  touched: {', '.join(stage.touched)}")


def main() -> None:
    """Trace the stages given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], help="the stages to trace; all if none is named")
    parser.add_argument("--all", action="store_true", help="count the files of other stages too")
    options = parser.parse_args()
    print_paths(trace_all(options.stages, across=options.all))


if __name__ == "__main__":
    main()
