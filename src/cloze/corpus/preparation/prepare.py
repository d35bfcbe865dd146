"""``cloze prepare``: text -> sentences -> ids -> a folder that training memory-maps.

The text is divided into shards (``shard_plan.py``), which worker processes or cluster jobs write to the work folder
``OUT.partial`` (``shard_maker.py``). A shard appears there complete or not at all, so after an interruption the same
command builds only the missing shards. At the end, the manifest is written and the folder is renamed to ``OUT``.

Each stage is a list of tasks, JSON objects that a worker process or this process runs. ``_Work._run`` passes them to
``PreparationRunner._run`` (``shard_maker.py``), which calls one function per kind of task: ``fingerprint``, ``survey``,
``hash`` and ``shard``. Cluster jobs call ``ShardMaker.make`` directly.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from cloze.corpus.documents import CorpusSlice, FileRange, ShardText, is_compressed
from cloze.corpus.preparation.cluster import CLUSTER, check_engine, make_on_cluster
from cloze.corpus.preparation.deduplicate import keep_first
from cloze.corpus.preparation.shard_maker import (
    COUNTS,
    SHARD_INFO,
    PreparationRunner,
    Task,
    atomic_file,
    describe,
    disk_errors,
    read_shard_info,
)
from cloze.corpus.preparation.shard_plan import (
    HASHES,
    PLAN,
    WORDS,
    ByteMeter,
    FileState,
    ShardPlan,
    check_is_corpus,
    check_same,
    differences,
    estimated_size,
    file_state,
    gather,
    hashes_path,
    id_type,
    kept_path,
    make_recipe,
    shard_name,
    work_folder,
)
from cloze.corpus.record_files import documents_as_files
from cloze.corpus.settings import EngineSettings, PrepareSettings
from cloze.corpus.shards import FORMAT, MANIFEST, SHARDS, SPLITS, read_manifest
from cloze.errors import ClozeError, DataError
from cloze.files import check_named, check_replaceable, flush, write_json
from cloze.locks import LOCK, aside_name, delete, locked, only_writer, real_target
from cloze.progress import Interrupted, Progress, Silent, heard_at_once
from cloze.text import Tokenizer
from cloze.text.segmentation import WordSplitter
from cloze.text.tokenizer_files import TOKENIZER_FILES, find_vocabulary
from cloze.workers import Report, WorkerPool, run_here, usable_cores

PROGRAM = """
from cloze.corpus.preparation.shard_maker import PreparationRunner
from cloze.workers import serve
serve(PreparationRunner())
"""
_WORTH_A_PROCESS = 8 * 10**6  # fewer bytes take less time than starting a worker process
_MOST_DEATHS = 3  # give up after this many worker processes have died during the same task
# Everything that may be in a work folder.
_TEMPORARY = re.compile(r".+\.\d+\.tmp")  # includes the id of the process that wrote it
_OURS = {PLAN, MANIFEST, SHARDS, HASHES, WORDS, CLUSTER, LOCK, *TOKENIZER_FILES}


def prepare(
    texts: Any,
    vocab: str | Path,
    out: str | Path,
    *,
    settings: PrepareSettings | None = None,
    engine: EngineSettings | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Tokenize text files and write a corpus that ``pretrain`` memory-maps.

    Calling this again resumes interrupted work, and returns at once if the corpus exists.

    Args:
        texts: Plain text, JSONL or Parquet files, or documents in memory as for ``train_vocabulary``.
        vocab: Folder with a vocabulary or model, folder of a run, or name of a shipped model.
        out: Folder to write to. Unfinished work is in ``OUT.partial``.
        settings: All settings that affect the result.
        engine: Where the work runs: worker processes on this machine, Slurm or Ray.
        fresh: Replace an existing corpus, and discard unfinished work that was started with other settings.
        progress: Receives progress and messages.

    Returns:
        The folder of the corpus.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If a text cannot be read, or the folder holds something else or a corpus with other settings.

    Example:
        >>> cloze.prepare({"text": ["The cat sat. It slept."] * 20}, "cloze-mini", "corpus")
        PosixPath('corpus')
    """
    settings, engine, progress = settings or PrepareSettings(), engine or EngineSettings(), progress or Silent()
    folder = check_named(Path(out))
    check_engine(engine)
    tokenizer = Tokenizer.from_folder(find_vocabulary(Path(vocab)))
    WordSplitter(settings.words)  # built only to report errors in the words file before the work starts
    with heard_at_once(), ExitStack() as stack:
        stack.enter_context(only_writer(folder))
        check_replaceable(folder, "folder")
        exists = folder.exists() and not _is_empty(folder)
        if exists:
            check_is_corpus(folder)
        paths = stack.enter_context(documents_as_files(texts, folder, settings.text))
        work = _Work(work_folder(folder), paths, engine, progress)
        stack.enter_context(work.summarized_if_interrupted())
        work.record_states()
        recipe = make_recipe(work.fingerprints(), tokenizer, settings)
        if exists and not fresh:
            check_same(folder, recipe)
            return folder
        with work.locked():
            plan = work.plan(recipe, tokenizer, settings, fresh=fresh)
            work.find_duplicates(plan)
            work.make_shards(plan)
            work.finish(plan, folder)
    return folder


class _Work:
    """The work folder ``OUT.partial``, and the steps that fill it."""

    def __init__(self, folder: Path, paths: list[Path], engine: EngineSettings, progress: Progress) -> None:
        self.folder = folder
        self._paths = paths
        self._engine = engine
        self._progress = progress
        self._plan: ShardPlan | None = None
        self._states: list[FileState] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the work folder; afterwards, remove it unless the next call can reuse its content."""
        self._check_folder()
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        busy = DataError(f"{self.folder}: another process is using this folder; wait for it or choose another --out")
        with locked(self.folder, busy):
            stopped = False
            try:
                yield
            except Interrupted:
                stopped = True
                raise
            finally:
                # After an interrupt, the plan is reusable too; after an error, the text may have to change. Cluster
                # jobs continue without this process, so their folder stays.
                is_reusable = any(self.folder.glob(f"{SHARDS}/*/{SHARD_INFO}")) or (
                    stopped and (self.folder / PLAN).is_file()
                )
                if self._engine.engine == "local" and not is_reusable:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def _check_folder(self) -> None:
        """Raise an error if the folder holds other files, because the content of a work folder is deleted later."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        foreign = sorted(name for name in names - _OURS if not _TEMPORARY.fullmatch(name))
        if foreign:
            raise DataError(
                f"{self.folder}: holds {foreign[0]!r}, which cloze did not write, but this folder is needed for the "
                "work; choose another --out, or rename that folder"
            )

    @contextmanager
    def summarized_if_interrupted(self) -> Iterator[None]:
        """Add the number of finished shards to the message of an interrupt."""
        try:
            yield
        except Interrupted as error:
            count = 0 if self._plan is None else len(self._plan.texts) - len(self._missing(self._plan))
            of = "" if self._plan is None else f" of {len(self._plan.texts)}"
            message = f"stopped; {count}{of} shards are finished and saved; run the same command to resume"
            raise Interrupted(error.number, message) from None

    def record_states(self) -> None:
        """Record the state of every text file before it is read, to detect files that change during the work."""
        self._states = [file_state(path) for path in self._paths]

    def fingerprints(self) -> list[list[str]]:
        """Return the name and SHA-256 of every text file."""
        tasks: list[Task] = [{"do": "fingerprint", "path": str(path)} for path in self._paths]
        digests = {task["path"]: digest for task, digest in self._run(tasks, "fingerprints", None)}
        return [[path.name, digests[str(path)]] for path in self._paths]

    def plan(
        self, recipe: dict[str, Any], tokenizer: Tokenizer, settings: PrepareSettings, *, fresh: bool
    ) -> ShardPlan:
        """Return the saved plan of interrupted work if there is one, otherwise a new plan."""
        saved = ShardPlan.read(self.folder) if (self.folder / PLAN).is_file() else None
        changes = differences(saved.recipe, recipe) if saved else ""
        if changes and not fresh:
            raise DataError(
                f"{self.folder}: holds unfinished work with other settings ({changes}); "
                "run the command that started it, or start over with --fresh"
            )
        # A saved plan is used with --fresh too: the interrupted command may have had it. Existing shards are verified.
        if saved is not None and not changes:
            self._plan = self._make_plan(saved.texts, recipe, saved.dtype)
        elif (self.folder / MANIFEST).is_file() and saved is None and read_manifest(self.folder)["recipe"] == recipe:
            # The process was killed between the last two steps: only the rename is left to do.
            texts: list[ShardText] = [()] * len(read_manifest(self.folder)["shards"])
            self._plan = self._make_plan(texts, recipe, read_manifest(self.folder)["dtype"])
        else:
            self._plan = self._new_plan(recipe, tokenizer, settings)
        with atomic_file(self.folder / PLAN) as temporary:
            write_json(temporary, self._plan.as_json())
        return self._plan

    def _new_plan(self, recipe: dict[str, Any], tokenizer: Tokenizer, settings: PrepareSettings) -> ShardPlan:
        with disk_errors(self.folder):
            for path in self.folder.iterdir():
                if path.name != LOCK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            (self.folder / SHARDS).mkdir()
            tokenizer.save(self.folder)
            if settings.words is not None:
                shutil.copyfile(settings.words, self.folder / WORDS)
        size = max(1, int(settings.shard_size * 10**6))
        texts = gather(self._survey(settings.text, size), size)
        return self._make_plan(texts, recipe, id_type(tokenizer))

    def _make_plan(self, texts: list[ShardText], recipe: dict[str, Any], dtype: str) -> ShardPlan:
        return ShardPlan([path.resolve() for path in self._paths], texts, recipe, dtype, self._states)

    def _survey(self, column: str, size: int) -> list[CorpusSlice]:
        tasks: list[Task] = [
            {"do": "survey", "path": str(path), "file": file, "column": column, "slice_size": size}
            for file, path in enumerate(self._paths)
        ]
        compressed = any(map(is_compressed, self._paths))
        total = None if compressed else sum(path.stat().st_size for path in self._paths)
        by_file = {task["file"]: result for task, result in self._run(tasks, "reading (bytes)", total)}
        slices = (piece for file in range(len(tasks)) for piece in by_file[file])
        return [CorpusSlice(file, FileRange(*limits), size) for file, limits, size in slices]

    def find_duplicates(self, plan: ShardPlan) -> None:
        """Write flags of the documents to keep in each shard, unless duplicates are kept."""
        kind, last = plan.recipe["duplicates"], len(plan.texts) - 1
        if kind == "keep" or not self._missing(plan) or kept_path(self.folder, last).exists():
            return
        with disk_errors(self.folder):
            (self.folder / HASHES).mkdir(exist_ok=True)
        self._run_for_shards(plan, "hash", range(len(plan.texts)), "looking for duplicates (bytes)")
        with disk_errors(self.folder):
            kept = keep_first(
                [hashes_path(self.folder, shard) for shard in range(len(plan.texts))],
                kind,
                self.folder / HASHES / "all",
            )
            for shard, flags in enumerate(kept):  # in order: if the last file exists, all exist
                with atomic_file(kept_path(self.folder, shard)) as temporary:
                    flags.tofile(temporary)

    def make_shards(self, plan: ShardPlan) -> None:
        """Build the missing shards."""
        missing = self._missing(plan)
        if missing and len(missing) < len(plan.texts):
            self._progress.say(f"resuming: {len(plan.texts) - len(missing)} of {len(plan.texts)} shards are finished")
        if missing and self._engine.engine != "local":
            make_on_cluster(self.folder, len(plan.texts), lambda: self._missing(plan), self._engine, self._progress)
            return
        self._remove_temporary()
        self._run_for_shards(plan, "shard", missing, "preparing (bytes)")

    def _remove_temporary(self) -> None:
        """Remove temporary files left behind by killed processes."""
        for path in [*self.folder.glob("*.tmp"), *self.folder.glob("*/*.tmp")]:
            if _TEMPORARY.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _missing(self, plan: ShardPlan) -> list[int]:
        shards = self.folder / SHARDS
        numbers = range(len(plan.texts))
        return [shard for shard in numbers if read_shard_info(shards / shard_name(shard), plan.dtype) is None]

    def _run_for_shards(self, plan: ShardPlan, kind: str, shards: Sequence[int], stage: str) -> None:
        sizes = {shard: plan.size(shard) for shard in shards}
        tasks: list[Task] = [
            {"do": kind, "folder": str(self.folder.resolve()), "shard": shard, "size": sizes[shard]} for shard in shards
        ]
        self._run(tasks, stage, sum(sizes.values()))

    def _run(self, tasks: Sequence[Task], stage: str, total: int | None) -> list[tuple[Task, Any]]:
        """Run tasks in worker processes, or in this process if there is little text; return them with their results."""
        meter = ByteMeter(self._progress, stage, total)
        workers = self._engine.workers if self._engine.engine == "local" else None
        if workers is None:
            workers = usable_cores() if estimated_size(self._paths) > _WORTH_A_PROCESS else 1
        results = list(run_tasks(tasks, workers, meter.add, self._progress.say))
        meter.finish()
        return results

    def finish(self, plan: ShardPlan, folder: Path) -> None:
        """Write the manifest, remove temporary files, and rename the work folder to the corpus."""
        shards = [
            read_shard_info(self.folder / SHARDS / shard_name(shard), plan.dtype) for shard in range(len(plan.texts))
        ]
        infos = [shard for shard in shards if shard is not None]
        if len(infos) < len(shards):
            raise DataError(f"{self.folder}: shards were damaged during the work; run the same command again")
        splits = {
            split: {name: sum(shard["splits"][split][name] for shard in infos) for name in COUNTS} for split in SPLITS
        }
        if not splits["train"]["tokens"]:
            shutil.rmtree(self.folder)
            names, held_out = ", ".join(map(str, self._paths)), splits["held_out"]["documents"]
            if held_out:
                raise DataError(
                    f"{names}: all documents ({held_out}) were held out, so none are left for training; "
                    "use a smaller --held-out or another --seed, and separate documents with blank lines"
                )
            raise DataError(f"{names}: contains no text; expected a sentence or a paragraph per line")
        manifest = {
            "format": FORMAT,
            "dtype": plan.dtype,
            "splits": splits,
            "bad_rows": sum(shard["bad_rows"] for shard in infos),
            "duplicates": sum(shard["duplicates"] for shard in infos),
            "recipe": plan.recipe,
            "shards": infos,
        }
        plan.check_unchanged(range(len(plan.paths)))
        with atomic_file(self.folder / MANIFEST) as temporary:
            write_json(temporary, manifest)
        with disk_errors(self.folder):
            for path in self.folder.iterdir():
                if path.is_file():
                    flush(path)
            self._rename(folder)

    def _rename(self, folder: Path) -> None:
        self._remove_temporary()
        for name in (HASHES, WORDS, CLUSTER, LOCK, PLAN):
            path = self.folder / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        place = real_target(folder)
        old = aside_name(place)
        if place.exists():
            place.rename(old)
        flush(self.folder)
        self.folder.rename(place)
        flush(place.parent)
        delete(old)


def run_tasks(
    tasks: Sequence[Task], workers: int, report: Report, say: Callable[[str], None]
) -> Iterator[tuple[Task, Any]]:
    """Run tasks and yield each with its result as it finishes.

    Args:
        tasks: Objects for ``PreparationRunner``.
        workers: Number of processes; 1 runs them in this process.
        report: Called with processed bytes, which add up to the ``size`` of each task that has one.
        say: Called with a message when a worker dies.
    """
    payloads = [json.dumps(task).encode() for task in tasks]

    def on_death(index: int | None, deaths: int, exit_code: int) -> None:
        if index is None:
            return
        what = describe(tasks[index])
        if deaths == _MOST_DEATHS:
            raise ClozeError(
                f"{what}: {deaths} processes died during this task, the last with exit code {exit_code}, perhaps for "
                "lack of memory; finished shards are saved: re-run the command to resume, with fewer --workers"
            )
        say(f"{what}: its process died (exit code {exit_code}); another process repeats the task")

    with ExitStack() as stack:
        if workers == 1 or len(tasks) == 1:
            completed = run_here(stack.enter_context(closing(PreparationRunner())), payloads, report)
        else:
            completed = stack.enter_context(WorkerPool(PROGRAM, workers, on_death, report=report)).run(payloads)
        for index, result, reported in completed:
            report(tasks[index].get("size", reported) - reported)
            yield tasks[index], json.loads(result)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
