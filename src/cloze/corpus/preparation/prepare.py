"""``cloze prepare``: text -> sentences -> ids -> a folder that training maps into memory.

The text is divided into parts, and each part becomes a shard in the work folder ``OUT.partial``, by whoever is free.
A shard appears there whole or not at all; so the same command, after whatever has stopped it, makes the shards that
are missing. When all are there, the manifest is written and the work folder becomes ``OUT``.

What a prepared corpus depends on: written down with it, and compared before anything is taken for done.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cloze.corpus.documents import Span, is_compressed
from cloze.corpus.parts import Part, Segment, gather
from cloze.corpus.preparation.cluster import CLUSTER, check_engine, make_on_cluster
from cloze.corpus.preparation.deduplicate import BANDS, ROWS, keep_exact, keep_near
from cloze.corpus.preparation.make_shard import HASHES, PLAN, WORDS, Plan, hashes_path, kept_path, shard_name
from cloze.corpus.preparation.shard_writer import COUNTS, FACTS, read_facts, telling_of_disk, written_file
from cloze.corpus.preparation.workers import Answer, Task, do_tasks
from cloze.corpus.settings import EngineSettings, PrepareSettings
from cloze.corpus.shards import FORMAT, MANIFEST, SHARDS, SPLITS, file_digest, read_manifest
from cloze.errors import DataError
from cloze.files import LOCK, check_named, flush, locked, put_aside, write_json
from cloze.interrupts import Interrupted, heard_at_once
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.text.segmentation import WordSplitter
from cloze.text.tokenizer_files import FILES as VOCABULARY_FILES
from cloze.text.tokenizer_files import find_vocabulary
from cloze.text.word_counts import usable_cores

# To be raised when split_sentences or encode_words come to other results.
SENTENCE_RULES = 1
WORD_RULES = 1


def make_recipe(texts: list[list[str]], tokenizer: Tokenizer, settings: PrepareSettings) -> dict[str, Any]:
    """Everything that the result depends on; ``texts`` are the names and fingerprints of the files."""
    return {
        # A list: the order decides which documents are held out, and two files may have one name.
        "texts": texts,
        "vocabulary": tokenizer.digest,
        "held_out": settings.held_out,
        "seed": settings.seed,
        "column": settings.text,
        "on_bad_row": settings.on_bad_row,
        "words": None if settings.words is None else file_digest(settings.words),
        "lines": settings.lines,
        "duplicates": settings.duplicates,
        "shard_size": settings.shard_size,
        "sentence_rules": f"{SENTENCE_RULES}, sentencex {version('sentencex')}",
        "word_rules": f"{WORD_RULES}, rjieba {version('rjieba')}",
    }


def check_same(folder: Path, recipe: dict[str, Any]) -> None:
    """Accept a folder that holds just this; refuse to overwrite anything else."""
    check_is_corpus(folder)
    if changes := differences(read_manifest(folder).get("recipe"), recipe):
        raise DataError(f"{folder}: was prepared otherwise ({changes}); choose another --out or delete it")


def check_is_corpus(folder: Path) -> None:
    """Refuse a folder of somebody else's."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: exists and is not a prepared corpus; choose another --out")


def differences(there: Any, here: dict[str, Any]) -> str:
    """In which points two recipes differ, in words; nothing if they are the same."""
    recorded = there if isinstance(there, dict) else {}
    changed = [key for key in here if key not in recorded or recorded[key] != here[key]]
    if not changed:
        return ""
    shown = [
        f"{key} is {recorded[key]} there and {here[key]} here"
        for key in changed
        if key in recorded and key not in {"texts", "vocabulary", "words"}
    ]
    return f"{', '.join(changed)} differ{': ' if shown else ''}{', '.join(shown)}"


# Text of fewer bytes is prepared before another process would have started.
_WORTH_A_PROCESS = 8 * 10**6
_LIKELY_COMPRESSION = 4
_TOLD_EVERY = 2**18
# What is done before anybody could have read of it.
_WORTH_TELLING = 2**15
# What may lie in a work folder.
_OURS = {PLAN, MANIFEST, SHARDS, HASHES, WORDS, CLUSTER, LOCK, *VOCABULARY_FILES}


def prepare(
    texts: Sequence[str | Path],
    vocab: str | Path,
    out: str | Path,
    *,
    settings: PrepareSettings | None = None,
    engine: EngineSettings | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Prepare text files with the vocabulary of a folder, a run or the shipped model.

    The same call goes on where another stopped. Done already, it returns at once. ``fresh`` forgets what was
    prepared in this place, or begun otherwise.
    """
    settings, engine, progress = settings or PrepareSettings(), engine or EngineSettings(), progress or Silent()
    paths, folder = [Path(text) for text in texts], check_named(Path(out))
    check_engine(engine)
    tokenizer = Tokenizer.from_folder(find_vocabulary(Path(vocab)))
    WordSplitter(settings.words)  # a mistake in it is told now
    is_there = folder.exists() and not _is_empty(folder)
    if is_there:
        check_is_corpus(folder)
    work = _Work(folder.with_name(f"{folder.name}.partial"), paths, engine, progress)
    with heard_at_once(), work.told_when_interrupted():
        recipe = make_recipe(work.fingerprints(), tokenizer, settings)
        if is_there and not fresh:
            check_same(folder, recipe)
            return folder
        with work.locked():
            plan = work.plan(recipe, tokenizer, settings, fresh=fresh)
            work.find_duplicates(plan)
            work.make_shards(plan)
            work.finish(plan, folder)
    return folder


class _Work:
    """The work folder, and those who work there."""

    def __init__(self, folder: Path, paths: list[Path], engine: EngineSettings, progress: Progress) -> None:
        self.folder = folder
        self._paths = paths
        self._engine = engine
        self._progress = progress
        self._plan: Plan | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others away; leave nothing behind that is of no use."""
        self._refuse_others_folder()
        with telling_of_disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        busy = DataError(f"{self.folder}: another process is preparing this; wait for it or choose another --out")
        with locked(self.folder, busy):
            stopped = False
            try:
                yield
            except Interrupted:
                stopped = True
                raise
            finally:
                # What was found by looking through the text is worth keeping, unless the text is what is wrong; and the
                # jobs of a cluster go on without us.
                begun = any(self.folder.glob(f"{SHARDS}/*/{FACTS}")) or (stopped and (self.folder / PLAN).is_file())
                if self._engine.engine == "local" and not begun:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def _refuse_others_folder(self) -> None:
        """Keep our hands off a folder that has this name by chance: what lies in a work folder gets deleted."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        others = sorted(name for name in names - _OURS if not name.endswith(".tmp"))
        if others:
            raise DataError(
                f"{self.folder}: holds {others[0]!r}, which is none of ours, but the work is to be done there; "
                "choose another --out, or give that folder another name"
            )

    @contextmanager
    def told_when_interrupted(self) -> Iterator[None]:
        """Say what was saved, if a signal ends the work."""
        try:
            yield
        except Interrupted as error:
            count = 0 if self._plan is None else len(self._plan.parts) - len(self._missing(self._plan))
            of = "" if self._plan is None else f" of {len(self._plan.parts)}"
            message = f"stopped; {count}{of} shards are finished and kept; the same command goes on"
            raise Interrupted(error.number, message) from None

    def fingerprints(self) -> list[list[str]]:
        """The name and SHA-256 of every text file."""
        tasks: list[Task] = [{"do": "fingerprint", "path": str(path)} for path in self._paths]
        found = self._done(tasks, "fingerprints", None)
        digests = {task["path"]: digest for task, digest in found}
        return [[path.name, digests[str(path)]] for path in self._paths]

    def plan(self, recipe: dict[str, Any], tokenizer: Tokenizer, settings: PrepareSettings, *, fresh: bool) -> Plan:
        """Go on with the plan that is there, or make one."""
        there = Plan.read(self.folder) if (self.folder / PLAN).is_file() else None
        changes = differences(there.recipe, recipe) if there else ""
        if changes and not fresh:
            raise DataError(
                f"{self.folder}: holds unfinished work of another kind ({changes}); "
                "give the command that began it, or begin anew with --fresh"
            )
        # Also of a command with --fresh, which may be the one that was stopped: shards that are there are verified.
        if there is not None and not changes:
            self._plan = Plan([path.resolve() for path in self._paths], there.parts, recipe, there.dtype)
        elif (self.folder / MANIFEST).is_file() and there is None and self._manifest()["recipe"] == recipe:
            # Killed between the last two steps, when nothing but the name was missing.
            parts: list[Part] = [()] * len(self._manifest()["shards"])
            self._plan = Plan([], parts, recipe, self._manifest()["dtype"])
        else:
            self._plan = self._new_plan(recipe, tokenizer, settings)
        with written_file(self.folder / PLAN) as temporary:
            write_json(temporary, self._plan.as_json())
        return self._plan

    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    def _new_plan(self, recipe: dict[str, Any], tokenizer: Tokenizer, settings: PrepareSettings) -> Plan:
        with telling_of_disk(self.folder):
            for path in self.folder.iterdir():
                if path.name != LOCK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            (self.folder / SHARDS).mkdir()
            tokenizer.save(self.folder)
            if settings.words is not None:
                shutil.copyfile(settings.words, self.folder / WORDS)
        size = max(1, int(settings.shard_size * 10**6))
        parts = gather(self._survey(settings.text, size), size)
        return Plan([path.resolve() for path in self._paths], parts, recipe, id_type(tokenizer))

    def _survey(self, column: str, size: int) -> list[Segment]:
        tasks: list[Task] = [
            {"do": "survey", "path": str(path), "file": file, "column": column, "size_of_part": size}
            for file, path in enumerate(self._paths)
        ]
        compressed = any(map(is_compressed, self._paths))
        total = None if compressed else sum(path.stat().st_size for path in self._paths)
        found = {task["file"]: answer for task, answer in self._done(tasks, "reading (bytes)", total)}
        segments = (segment for file in range(len(tasks)) for segment in found[file])
        return [Segment(file, Span(*span), bytes_) for file, span, bytes_ in segments]

    def find_duplicates(self, plan: Plan) -> None:
        """Write down which documents of every part are kept, where that is asked for."""
        kind, last = plan.recipe["duplicates"], len(plan.parts) - 1
        if kind == "keep" or not self._missing(plan) or kept_path(self.folder, last).exists():
            return
        with telling_of_disk(self.folder):
            (self.folder / HASHES).mkdir(exist_ok=True)
        self._all(plan, "hash", range(len(plan.parts)), "looking for duplicates (bytes)")
        with telling_of_disk(self.folder):
            self._write_kept(plan, kind)

    def _write_kept(self, plan: Plan, kind: str) -> None:
        width = 16 if kind == "exact" else BANDS * ROWS * 4
        together = self.folder / HASHES / "all"
        counts = []
        with together.open("wb") as all_hashes:
            for part in range(len(plan.parts)):
                with hashes_path(self.folder, part).open("rb") as hashes:
                    shutil.copyfileobj(hashes, all_hashes)
                    counts.append(hashes.tell() // width)
        if kind == "exact":
            keep = keep_exact(np.fromfile(together, "<u8").reshape(-1, 2))
        else:
            empty = np.zeros((0, BANDS * ROWS), np.uint32)
            mapped = np.memmap(together, "<u4", "r").reshape(-1, BANDS * ROWS) if sum(counts) else empty
            keep = keep_near(mapped)
        together.unlink()
        ends = np.cumsum(counts)
        for part, count in enumerate(counts):  # the last one last: its presence says that all are there
            with written_file(kept_path(self.folder, part)) as temporary:
                keep[ends[part] - count : ends[part]].tofile(temporary)

    def make_shards(self, plan: Plan) -> None:
        """Make the shards that are missing."""
        missing = self._missing(plan)
        if missing and len(missing) < len(plan.parts):
            self._progress.say(f"going on: {len(plan.parts) - len(missing)} of {len(plan.parts)} shards are there")
        if missing and self._engine.engine != "local":
            make_on_cluster(self.folder, len(plan.parts), lambda: self._missing(plan), self._engine, self._progress)
            return
        self._sweep()
        self._all(plan, "shard", missing, "preparing (bytes)")

    def _sweep(self) -> None:
        """Take away what killed processes have left half done."""
        for ruin in [*self.folder.glob("*.tmp"), *self.folder.glob("*/*.tmp")]:
            shutil.rmtree(ruin) if ruin.is_dir() else ruin.unlink()

    def _missing(self, plan: Plan) -> list[int]:
        shards = self.folder / SHARDS
        numbers = range(len(plan.parts))
        return [part for part in numbers if read_facts(shards / shard_name(part), plan.dtype) is None]

    def _all(self, plan: Plan, what: str, parts: Sequence[int], stage: str) -> None:
        sizes = {part: plan.size(part) for part in parts}
        tasks: list[Task] = [
            {"do": what, "folder": str(self.folder.resolve()), "part": part, "size": sizes[part]} for part in parts
        ]
        for _ in self._done(tasks, stage, sum(sizes.values())):
            pass

    def _done(self, tasks: Sequence[Task], stage: str, total: int | None) -> list[tuple[Task, Answer]]:
        meter = _Meter(self._progress, stage, total)
        workers = self._engine.workers if self._engine.engine == "local" else None
        if workers is None:
            workers = usable_cores() if _estimated_size(self._paths) > _WORTH_A_PROCESS else 1
        done = list(do_tasks(tasks, workers, meter.add, self._progress.say))
        meter.finish()
        return done

    def finish(self, plan: Plan, folder: Path) -> None:
        """Write the manifest, put away the tools, and give the corpus its name."""
        shards = [read_facts(self.folder / SHARDS / shard_name(part), plan.dtype) for part in range(len(plan.parts))]
        facts = [shard for shard in shards if shard is not None]
        if len(facts) < len(shards):
            raise DataError(f"{self.folder}: shards were damaged while others were made; give the same command again")
        splits = {
            split: {name: sum(shard["splits"][split][name] for shard in facts) for name in COUNTS} for split in SPLITS
        }
        if not splits["train"]["tokens"]:
            shutil.rmtree(self.folder)
            told, held_out = ", ".join(map(str, self._paths)), splits["held_out"]["documents"]
            if held_out:
                raise DataError(
                    f"{told}: all of its documents ({held_out}) were held out, and none is left to train on; "
                    "use a smaller --held-out or another --seed, and see that blank lines part the documents"
                )
            raise DataError(f"{told}: no text in it; expected a sentence or a paragraph a line")
        manifest = {
            "format": FORMAT,
            "dtype": plan.dtype,
            "splits": splits,
            "bad_rows": sum(shard["bad_rows"] for shard in facts),
            "duplicates": sum(shard["duplicates"] for shard in facts),
            "recipe": plan.recipe,
            "shards": facts,
        }
        with written_file(self.folder / MANIFEST) as temporary:
            write_json(temporary, manifest)
        with telling_of_disk(self.folder):
            for path in self.folder.iterdir():
                if path.is_file():
                    flush(path)
            self._rename(folder)

    def _rename(self, folder: Path) -> None:
        self._sweep()
        for name in (HASHES, WORDS, CLUSTER, LOCK, PLAN):
            path = self.folder / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        old = put_aside(folder)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        flush(self.folder)
        self.folder.rename(folder)
        flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)


class _Meter:
    """Adds up bytes and tells of them."""

    def __init__(self, progress: Progress, stage: str, total: int | None) -> None:
        self._progress = progress
        self._stage = stage
        self._total = total
        self._done = self._told = 0
        self._begun = time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if abs(self._done - self._told) < _TOLD_EVERY:
            return
        self._told = self._done
        # Not the whole before the end, which is told once.
        done = max(0, self._done) if self._total is None else min(max(0, self._done), max(0, self._total - 1))
        rate = done / 10**6 / max(1e-3, time.monotonic() - self._begun)
        self._progress.advance(self._stage, done, self._total, **{"MB/s": rate})

    def finish(self) -> None:
        if self._total is not None and self._total >= _WORTH_TELLING:
            self._progress.advance(self._stage, self._total, self._total)


def id_type(tokenizer: Tokenizer) -> str:
    """The smallest kind of number that holds every id."""
    return "<u2" if tokenizer.size <= 2**16 else "<i4"


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _estimated_size(paths: Sequence[Path]) -> int:
    """About how many bytes of text there are; what is missing is for the reader to tell."""
    sizes = ((path, path.stat().st_size) for path in paths if path.is_file())
    return sum(size * (_LIKELY_COMPRESSION if is_compressed(path) else 1) for path, size in sizes)
