"""Short versions of the torture campaign, and tests that each of its checks can fail."""

import errno
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torture import (
    changes,
    changing_files,
    damage,
    disks,
    faults,
    indexes,
    kills,
    memory_limits,
    neighbours,
    parts,
    ranks,
    resumes,
    signals,
    spikes,
    team_sizes,
    training,
    writers,
)
from torture.__main__ import TRIALS, main
from torture.campaign import ROOT, Outcome, Trial, conditions, run_trials
from torture.fixed_texts import FIXED
from torture.preparation import PreparationSettings, children, differences
from torture.preparation import run as prepare_with_kills
from torture.processes import Death, do_in_processes
from torture.string_checks import Candidate, check_texts, is_defined, offset_problem
from torture.strings import StringSettings, Task, check_task, standard_candidates, torture_strings
from torture.tables import TableSettings, csv_cases, read_table
from torture.tables import run as read_tables
from torture.vocabulary import LearningSettings, choose_conditions
from torture.vocabulary import run as learn_often

from cloze.errors import ConfigError
from cloze.progress import Progress, Silent
from cloze.text import SPECIAL, Encoding, Tokenizer
from tests.text.generated import strings, wild_strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

# Only the campaign checks times.
SHORT = StringSettings(generated=2000, wild=500, huge=3000, seconds_per_megabyte=float("inf"))


# T9, repeated vocabulary learning


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("\n".join([ENGLISH, CHINESE, MIXED, *strings(300, seed=1)]), encoding="utf-8")
    return path


def test_vocabulary_is_the_same_in_every_process(text_file: Path) -> None:
    outcome = learn_often(LearningSettings((text_file,), size=1500, runs=3), Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert (outcome.figures["runs"], outcome.figures["different folders"]) == (3, 1)
    assert isinstance(outcome.figures["files in each"], int)
    assert outcome.figures["files in each"] >= 3


def program(tmp_path: Path, body: str) -> tuple[str, ...]:
    """Return a stand-in for cloze that accepts the same arguments."""
    path = tmp_path / "program.py"
    path.write_text(f"import sys\nfrom pathlib import Path\nif '--help' not in sys.argv:\n{body}", encoding="utf-8")
    return (sys.executable, str(path))


HASH_ORDER = """
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    out.mkdir()
    out.joinpath("same.txt").write_text("same")
    out.joinpath("vocab.txt").write_text(chr(10).join({f"piece{number}" for number in range(100)}))
"""


def test_pieces_in_the_order_of_hashes_are_caught(text_file: Path, tmp_path: Path) -> None:
    settings = LearningSettings((text_file,), runs=3, command=program(tmp_path, HASH_ORDER))
    outcome = learn_often(settings, Silent())
    assert not outcome.passed
    assert outcome.figures["different folders"] == 3
    assert len(outcome.failures) == 2
    assert "hash_seed=7919" in outcome.failures[0]
    assert ": vocab.txt differ from those with" in outcome.failures[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    sys.exit('out of pieces')", "exit code 1: out of pieces"),
        ("    sys.exit(3)", "exit code 3: no message"),
        ("    pass", "no run has made a file"),
    ],
)
def test_runs_that_make_nothing_are_caught(body: str, message: str, text_file: Path, tmp_path: Path) -> None:
    outcome = learn_often(LearningSettings((text_file,), runs=2, command=program(tmp_path, body)), Silent())
    assert not outcome.passed
    assert message in " ".join(outcome.failures)


def test_a_command_without_help_is_caught(text_file: Path) -> None:
    outcome = learn_often(LearningSettings((text_file,), command=(sys.executable, "-c", "raise OSError")), Silent())
    assert (outcome.passed, outcome.failures) == (False, ["no help: exit code 1: OSError"])


def test_conditions_differ_from_run_to_run() -> None:
    every = choose_conditions(20, takes_workers=True)
    assert len({one.hash_seed for one in every}) == 20
    assert len({(one.threads, one.workers) for one in every}) == 12
    assert {one.workers for one in choose_conditions(20, takes_workers=False)} == {None}


# T10, strings


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> list[Candidate]:
    return standard_candidates(tmp_path_factory.mktemp("scratch"), [text_file], size=3000)


def test_strings(candidates: list[Candidate]) -> None:
    outcome = torture_strings(candidates, SHORT, Silent())
    assert outcome.failures == []
    assert outcome.passed
    figures = outcome.figures
    assert (figures["generated"], figures["wild"], figures["crashes"], figures["failed"]) == (2000, 500, 0, 0)
    # All strings of ``strings``, and more than a third of ``wild_strings``.
    assert isinstance(figures["ids compared"], int)
    assert figures["ids compared"] > 2 * 2500
    assert isinstance(figures["fixed"], int)
    assert figures["fixed"] > 1000


def test_strings_are_made_again_by_their_seed() -> None:
    for make in (strings, wild_strings):
        assert make(50, seed=3) == make(50, seed=3) != make(50, seed=4)
    assert any(0xD800 <= ord(character) < 0xE000 for text in wild_strings(300, seed=1) for character in text)


Damage = Callable[[Encoding], Encoding]


class Broken(Tokenizer):
    """A tokenizer that corrupts its encodings."""

    def __init__(self, sound: Tokenizer, damage: Damage) -> None:
        super().__init__(sound.settings)
        self.damage = damage

    def encode_batch(self, texts: Any, pairs: Any = None, **options: Any) -> list[Encoding]:
        return [self.damage(encoding) for encoding in super().encode_batch(texts, pairs, **options)]

    def encode_ids(self, texts: Any) -> list[list[int]]:
        return [encoding.ids for encoding in self.encode_batch(texts, special=False, max_length=9999)]


def one_further(encoding: Encoding) -> Encoding:
    return replace(encoding, offsets=[(start + (end > 0), end + (end > 0)) for start, end in encoding.offsets])


def backwards(encoding: Encoding) -> Encoding:
    return replace(encoding, offsets=encoding.offsets[::-1])


def too_short(encoding: Encoding) -> Encoding:
    return replace(encoding, offsets=[(start, max(end - 1, start)) for start, end in encoding.offsets])


def another_id(encoding: Encoding) -> Encoding:
    ids = [number + (number > 1000) for number in encoding.ids]
    return replace(encoding, ids=ids)


def forge(encoding: Encoding) -> Encoding:
    return replace(encoding, ids=[102] * len(encoding.ids), tokens=["[SEP]"] * len(encoding.ids))


def mask_nothing(encoding: Encoding) -> Encoding:
    ids = [100 if number == 103 else number for number in encoding.ids]
    return replace(encoding, ids=ids, tokens=["[UNK]" if token == "[MASK]" else token for token in encoding.tokens])


def one_segment(encoding: Encoding) -> Encoding:
    return replace(encoding, segments=[0] * len(encoding.segments))


def lose_silently(encoding: Encoding) -> Encoding:
    return replace(encoding, dropped=0)


def shorten(encoding: Encoding) -> Encoding:
    short = replace(encoding, dropped=encoding.dropped + 1)
    return short if None in encoding.sources else encoding


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (one_further, "offsets"),
        (backwards, r"offsets \(0, \d+\) of token 1 after"),
        (another_id, "the tokens are not the pieces of the ids"),
        (forge, "the text has forged a special token"),
        (mask_nothing, "read_mask has not read every mask in its place"),
        (one_segment, "pair cut to 7: segments differ from the whole text's"),
        (lose_silently, "cut to 7: 0 tokens reported as dropped, not"),
        (shorten, "cut to 7: 1 tokens reported as dropped, not 0"),
    ],
)
def test_damaged_encodings_are_caught(damage: Damage, message: str, candidates: list[Candidate]) -> None:
    texts = ["one [MASK] café two", "three times naïve", "x", *strings(40, seed=1)]
    sound = candidates[0]
    assert check_texts(texts, sound, "here", length=7).failures == []
    findings = check_texts(texts, Candidate("broken", Broken(sound.tokenizer, damage), True), "here", length=7)
    assert findings.failed == len(findings.failures) > 0
    assert any(re.search(message, failure) for failure in findings.failures), findings.failures[:3]
    assert findings.failures[0].startswith("here[")


def test_offsets_of_another_text_are_detected(candidates: list[Candidate]) -> None:
    """Valid offsets that cover another text are detected."""
    texts = ["the cat sat", "the dog ran"]
    late = Broken(
        candidates[0].tokenizer,
        lambda encoding: replace(encoding, offsets=[(s, max(e - 1, s)) for s, e in encoding.offsets]),
    )
    findings = check_texts(texts, Candidate("late", late, True), "here", length=7)
    assert [failure.split(": ", 1)[1] for failure in findings.failures] == [
        "token 'the' has the offsets (0, 2) of 'th': 'the cat sat'",
        "token 'the' has the offsets (0, 2) of 'th': 'the dog ran'",
    ]
    # Without reference ids, offsets may differ; but they must still lie inside the text.
    assert check_texts(texts, Candidate("late", late, False), "here", length=7).failures == []


def test_other_ids_than_the_originals_are_caught(candidates: list[Candidate]) -> None:
    keeps_accents = Tokenizer(replace(candidates[0].tokenizer.settings, strip_accents=False))
    texts = ["plain", "\u00e9t\u00e9"]
    findings = check_texts(texts, Candidate("accents", keeps_accents, True), "here", length=7)
    assert len(findings.failures) == 1
    assert re.match(r"here\[1\], accents: ids \[.*\] at token 0, where the original has \[", findings.failures[0])
    assert findings.failures[0].endswith(r": '\xe9t\xe9'")
    assert check_texts(texts, Candidate("accents", keeps_accents, False), "here", length=7).failures == []


def test_ids_that_differ_between_calls_are_caught(candidates: list[Candidate], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates[0].tokenizer, "encode_ids", lambda texts: [[1] for _ in texts])
    findings = check_texts(["plain"], candidates[0], "here", length=7)
    assert findings.failures == ["here[0], uncased: encode_ids gives other ids than encode_batch: 'plain'"]


class Panic(BaseException):
    """Stands for a panic in the native tokenizer, which is not a subclass of Exception."""


class Crashing(Tokenizer):
    """A tokenizer that fails on some texts, or kills its process."""

    def encode_batch(self, texts: Any, pairs: Any = None, **options: Any) -> list[Encoding]:
        if any("panic" in text for text in texts):
            raise Panic("too bad")
        if any("\U0001f468" in text for text in texts):
            os._exit(7)
        return super().encode_batch(texts, pairs, **options)


def test_crashes_are_caught_text_by_text(candidates: list[Candidate]) -> None:
    crashing = Candidate("crashing", Crashing(candidates[0].tokenizer.settings), True)
    findings = check_texts(["fine", "panic here", "fine too"], crashing, "strings(3, seed=1)", length=7)
    assert (findings.strings, findings.crashes) == (2, 1)
    assert findings.failures == ["strings(3, seed=1)[1], crashing: Panic: too bad: 'panic here'"]


def test_interrupts_are_none_of_the_texts_fault(candidates: list[Candidate]) -> None:
    def interrupt(encoding: Encoding) -> Encoding:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_texts(["a"], Candidate("slow", Broken(candidates[0].tokenizer, interrupt), True), "here", length=7)


def test_processes_that_die_are_caught(candidates: list[Candidate]) -> None:
    crashing = Candidate("crashing", Crashing(candidates[0].tokenizer.settings), True)
    settings = replace(SHORT, fixed=("zero-width joiners", "casing"), generated=10, wild=0)
    outcome = torture_strings([crashing], settings, Silent())
    assert not outcome.passed
    assert outcome.failures == ["fixed 'zero-width joiners': the process died with exit code 7"]
    # The remaining strings were checked by the process that replaced the dead one.
    assert (outcome.figures["generated"], outcome.figures["crashes"]) == (10, 1)


def sleepy(task: int, nap: float) -> int:
    time.sleep(nap if task == 1 else 0)
    return task + 1


def test_tasks_without_an_end_are_ended() -> None:
    done = dict(do_in_processes(sleepy, range(4), (600.0,), processes=2, longest=30))
    assert done == {0: 1, 1: Death("not done after 30 s"), 2: 3, 3: 4}


def test_vocabularies_that_know_nothing_and_slowness_are_caught() -> None:
    nothing = Tokenizer.from_vocabulary([*SPECIAL, "q"], lowercase=True)
    settings = replace(SHORT, fixed=("NUL",), generated=50, wild=0, seconds_per_megabyte=0.0)
    outcome = torture_strings([Candidate("nothing", nothing, True)], settings, Silent())
    assert not outcome.passed
    assert len(outcome.failures) == 2
    assert "of the tokens are known" in outcome.failures[0]
    assert "s/MB on average; at most 0.0 were allowed" in outcome.failures[1]


def test_a_loss_without_a_word_is_caught(candidates: list[Candidate]) -> None:
    lossy = Broken(candidates[0].tokenizer, lambda encoding: replace(encoding, dropped=3))
    findings = check_texts(["plain"], Candidate("lossy", lossy, True), "here", length=7)
    assert "3 tokens dropped where there was room for all" in findings.failures[0]


@pytest.mark.parametrize("offsets", [[(0, 6)], [(-1, 2)], [(2, 2)], [(3, 2)], [(1, 3), (0, 4)], [(1, 4), (2, 3)]])
def test_bad_offsets(offsets: list[tuple[int, int]]) -> None:
    assert offset_problem("abcde", offsets) is not None
    assert offset_problem("abcde", [(0, 1), (1, 3), (1, 3), (4, 5)]) is None


def test_characters_that_the_original_does_not_define() -> None:
    for text in ("\ue000", "\U0002b820", "\u166d", "\u2e5d", "\u0378"):
        assert not is_defined(f"a{text}", lowercase=False)
    assert is_defined("ΟΔΟΣ", lowercase=False)
    assert not is_defined("ΟΔΟΣ", lowercase=True)
    assert is_defined("a中\ud800\uffff\U0001f600\U00030000é\0", lowercase=True)
    assert all(is_defined(text, lowercase=True) for text in strings(500, seed=3))


@pytest.mark.parametrize("name", FIXED)
def test_fixed_classes_hold_several_texts(name: str) -> None:
    texts = list(FIXED[name](2000))
    assert len(texts) > 1 or name == "one line"


@pytest.mark.parametrize(("name", "huge"), [("NUL", 60_000), ("casing", 1), ("lone surrogates", 60_000)])
def test_no_fixed_text_is_skipped(name: str, huge: int, candidates: list[Candidate]) -> None:
    """No fixed text is left out, whether or not it is long enough to be checked alone."""
    findings = check_task(Task(name, 0, 1), candidates, huge)
    assert findings.strings == len(candidates) * len(list(FIXED[name](huge)))
    assert findings.failures == []


def test_a_missing_vocabulary_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.strings.PUBLISHED", "no_such_package")
    with pytest.raises(ConfigError, match=r"no_such_package is not installed.*'make torture' installs it"):
        standard_candidates(tmp_path, [], 100)


# T13, malformed tables


def test_bad_rows_are_named_by_line_and_long_lines_use_no_memory() -> None:
    outcome = read_tables(TableSettings(long_line=11 * 2**20), Silent())
    assert outcome.failures == []
    assert outcome.figures["files"] == 20


def test_a_message_without_its_line_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.tables.READ", "print('something is wrong')")
    (case,) = [case for case in csv_cases(100) if case.name == "bad UTF-8"]
    _, failure = read_table(case, tmp_path)
    assert failure == "bad UTF-8 (.csv): 'something is wrong'; expected LINE3: .*UTF-8.*"


# T23, preparation with kills


@pytest.fixture(scope="module")
def documents_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "documents.txt"
    documents = [ENGLISH, CHINESE, MIXED, *strings(300, seed=1)] * 6
    path.write_text("\n\n".join(" ".join(document.split()) for document in documents), encoding="utf-8")
    return path


def test_preparation_survives_its_processes(documents_file: Path) -> None:
    settings = PreparationSettings((documents_file,), vocabulary_size=3000, shard_size=0.02, kills=4, longest_wait=1.0)
    outcome = prepare_with_kills(settings, Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert outcome.figures["kills"] == 4
    assert isinstance(outcome.figures["shards"], int)
    assert outcome.figures["shards"] > 3


NUMBER_OF_PROCESS = """
    import os
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    out.mkdir()
    out.joinpath("shard.json").write_text(str(os.getpid()))
"""


def test_a_preparation_that_differs_is_caught(documents_file: Path, tmp_path: Path) -> None:
    settings = PreparationSettings((documents_file,), kills=0, command=program(tmp_path, NUMBER_OF_PROCESS))
    outcome = prepare_with_kills(settings, Silent())
    assert (outcome.passed, outcome.failures) == (False, ["shard.json differs from the uninterrupted run"])
    assert outcome.figures["different files"] == 1


FAILS_AT_SECOND = """
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    if out.name == "killed":
        sys.exit("out of order")
    out.mkdir()
    out.joinpath("shard.json").write_text("same")
"""


def test_a_preparation_that_fails_is_caught(documents_file: Path, tmp_path: Path) -> None:
    settings = PreparationSettings((documents_file,), kills=0, command=program(tmp_path, FAILS_AT_SECOND))
    outcome = prepare_with_kills(settings, Silent())
    assert not outcome.passed
    assert outcome.failures[0] == "command 1 ended with exit code 1: out of order"


def test_folders_are_compared_file_by_file() -> None:
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == [
        "a is missing",
        "c is unexpected",
        "b differs from the uninterrupted run",
    ]
    assert differences({}, {}) == ["the uninterrupted run wrote nothing"]
    assert children(2**22 + 1) == []


# T1 to T8, short training runs with kills


def test_killed_trainings_lose_nothing() -> None:
    outcome = kills.run(kills.KillSettings(kills=4, inside=1, steps=5), Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert outcome.figures["lost"] == 0
    assert outcome.figures["runs"] == outcome.figures["identical weights"]
    assert int(outcome.figures["kills"]) >= 4
    assert int(outcome.figures["inside saves"]) >= 1


def test_a_killed_process_is_replaced() -> None:
    outcome = ranks.run(ranks.RankSettings(kills=1, ways=("ddp",), steps=6), Silent())
    assert outcome.failures == []
    assert (outcome.figures["kills"], outcome.figures["lost"], outcome.figures["completed"]) == (1, 0, 1)


def test_signals_everywhere() -> None:
    outcome = signals.run(signals.SignalSettings(count=2, steps=6, longest=float("inf")), Silent())
    assert outcome.failures == []
    assert [outcome.figures[f"in {place}"] for place in ("step", "save", "evaluation", "preparation")] == [2] * 4
    assert int(outcome.figures["most steps or shards lost"]) <= 1


def test_resumed_at_every_step() -> None:
    outcome = resumes.run(resumes.ResumeSettings(last=6, documents=10, ways=("in parts",)), Silent())
    assert outcome.failures == []
    assert (outcome.figures["resumed"], outcome.figures["epochs"], outcome.figures["different"]) == (6, 2, 0)


def test_one_epoch_is_too_short() -> None:
    outcome = resumes.run(resumes.ResumeSettings(last=1, documents=60, ways=("plain",)), Silent())
    assert outcome.failures == ["the run was only one epoch; it must cross an epoch boundary"]


def test_process_groups_of_any_size_see_the_same_samples() -> None:
    chain: tuple[team_sizes.Stage, ...] = ((2, "ddp"), (1, "ddp"), (2, "fsdp"))
    outcome = team_sizes.run(team_sizes.SizeSettings(chains=(chain,), steps=6), Silent())
    assert outcome.failures == []
    assert (outcome.figures["chains"], outcome.figures["other rows"]) == (1, 0)


def test_disks_that_fail() -> None:
    outcome = disks.run(disks.DiskSettings(every=45, resumed=6, kilobytes=(8000,)), Silent())
    assert outcome.failures == []
    assert int(outcome.figures["writes that failed"]) >= 6
    assert (outcome.figures["lost"], outcome.figures["left behind"]) == (0, 0)
    assert outcome.figures["real disks"] in ("1 full, 1 read-only", "not root", "not available")


def test_damaged_checkpoints() -> None:
    outcome = damage.run(damage.DamageSettings(count=40, resumed=1), Silent())
    assert outcome.failures == []
    assert (outcome.figures["detected"], outcome.figures["fell back"]) == (40, 40)
    assert (
        outcome.figures["resumed to the same weights"],
        outcome.figures["rejected without an intact checkpoint"],
    ) == (2, 1)


def test_bad_batches_leave_no_trace() -> None:
    outcome = spikes.run(spikes.SpikeSettings(places=1, rows=1), Silent())
    assert outcome.failures == []
    assert (outcome.figures["bad steps"], outcome.figures["skipped and reported"]) == (3, 3)
    assert (outcome.figures["checkpoints of them"], outcome.figures["runs ended by five in a row"]) == (0, 1)
    assert outcome.figures["resumed to the same weights"] == 1


def test_several_writers_never_mix() -> None:
    outcome = writers.run(writers.WriterSettings(trials=1, commands=("convert",)), Silent())
    assert outcome.failures == []
    assert outcome.figures["mixed or missing"] == outcome.figures["other files changed"] == 0
    assert int(outcome.figures["wrote"]) >= 1


def test_killed_jobs_leave_no_answers_to_others() -> None:
    outcome = parts.run(parts.PartSettings(every=40), Silent())
    assert outcome.failures == []
    assert int(outcome.figures["kills"]) >= 2
    assert outcome.figures["old answers"] == 0


def test_killed_indexes_lose_nothing() -> None:
    outcome = indexes.run(indexes.IndexSettings(kills=4), Silent())
    assert outcome.failures == []
    assert (outcome.figures["kills"], outcome.figures["lost or broken"], outcome.figures["different files"]) == (
        4,
        0,
        0,
    )


def test_two_writers_of_an_index() -> None:
    outcome = writers.run(writers.WriterSettings(trials=1, commands=("index",), within=0.05), Silent())
    assert outcome.failures == []
    assert outcome.figures["mixed or missing"] == 0


def test_changed_bases_are_refused() -> None:
    outcome = changes.run(changes.ChangeSettings(("finetune",), every=6), Silent())
    assert outcome.failures == []
    assert int(outcome.figures["rejected by name"]) >= 2
    assert outcome.figures["accepted silently"] == 0


def test_neighbours_are_left_alone(tmp_path: Path) -> None:
    street = neighbours._OutputTrials(tmp_path, neighbours.NeighbourSettings(("vocab",)))
    for case in list(street.cases("vocab"))[::12]:
        case()
    assert street.failures == []
    assert street.changed == 0


def test_results_are_compared_to_the_bit(tmp_path: Path) -> None:
    one = training.Result("abc", [{"step": 1, "loss": 0.5}])
    assert training.differences(one, one, "here") == []
    assert training.differences(replace(one, weights="abd"), one, "here") == [
        "here: weights differ from the uninterrupted run"
    ]
    other = replace(one, losses=[{"step": 1, "loss": 0.5 + 2**-50}])
    assert training.differences(other, one, "here") == ["here: losses differ from the uninterrupted run"]
    for name in ("a.tmp", "b.old", "c.json"):
        (tmp_path / name).touch()
    assert training.leftovers(tmp_path) == ["a.tmp", "b.old"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_injected_faults_behave_like_a_disk(code: int, tmp_path: Path) -> None:
    """Injected faults affect only the folder: an I/O error occurs once, and a full disk stays full."""
    pipe, messages = multiprocessing.Pipe(duplex=False)
    disk = faults._Disk(faults.Fail(tmp_path / "run", 2, code), messages)
    disk.check("open", tmp_path / "elsewhere")
    disk.check("open", tmp_path / "run" / "one")
    with pytest.raises(OSError, match="two") as caught:
        disk.check("write", tmp_path / "run" / "two")
    assert caught.value.errno == code
    assert pipe.recv() == ("failed", "write", "two")
    if faults.LASTING[code]:
        with pytest.raises(OSError, match="three"):
            disk.check("write", tmp_path / "run" / "three")
    else:
        disk.check("write", tmp_path / "run" / "three")


# The campaign


@dataclass(frozen=True)
class Sizes:
    size: int = 1


def made_trial(passed: bool = True, size: int = 1) -> tuple[Trial, list[int]]:
    """Return a trial that records its runs."""
    runs: list[int] = []

    def run(settings: Sizes, progress: Progress) -> Outcome:
        runs.append(settings.size)
        progress.advance("trying", 1, 1)
        return Outcome(passed, {"runs": len(runs), "share": 0.5, "kind": "made"}, [] if passed else ["it broke"])

    return Trial("something", "nothing broken", Sizes(size), run, ("torture/campaign.py",)), runs


def test_passed_trials_are_not_repeated(tmp_path: Path) -> None:
    good, good_runs = made_trial()
    bad, bad_runs = made_trial(passed=False)
    for _ in range(2):
        outcomes = run_trials({"T1": good, "T2": bad}, ["T1", "T2"], tmp_path, Silent())
        assert (outcomes["T1"].passed, outcomes["T2"].passed) == (True, False)
    assert (len(good_runs), len(bad_runs)) == (1, 2)
    run_trials({"T1": good, "T2": bad}, ["T1"], tmp_path, Silent(), fresh=True)
    assert (len(good_runs), len(bad_runs)) == (2, 2)


def test_changed_settings_and_sources_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, runs = made_trial()
    run_trials({"T1": trial}, ["T1"], tmp_path, Silent())
    assert run_trials({"T1": replace(trial, settings=Sizes(2))}, [], tmp_path, Silent()) == {}
    run_trials({"T1": replace(trial, settings=Sizes(2))}, ["T1"], tmp_path, Silent())
    assert runs == [1, 2]
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "module.py").write_text("changed")
    monkeypatch.setattr("torture.campaign.SOURCES", tmp_path / "sources")
    run_trials({"T1": replace(trial, settings=Sizes(2))}, ["T1"], tmp_path, Silent())
    assert runs == [1, 2, 2]
    assert conditions(trial) != conditions(replace(trial, files=("torture/strings.py",)))


def test_table_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = {"T1": made_trial()[0], "T2": made_trial(passed=False)[0], "T3": made_trial()[0]}
    assert main(["--only", "T1"], trials, tmp_path) == 0
    assert main(["--only", "T1", "T2"], trials, tmp_path) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()[-3:]
    assert lines[0] == "T1\tsomething\tnothing broken\truns 1, share 0.5, kind made, 0 s\tpassed"
    assert lines[1].endswith("FAILED")
    assert lines[2].endswith("not run")
    assert "T2: it broke" in printed.err
    assert "T1: passed already" in printed.err
    kept = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert set(kept) == {"T1", "T2"}
    assert kept["T1"]["depends"]["settings"] == {"size": "1"}
    table = (tmp_path / "results.md").read_text(encoding="utf-8").splitlines()
    assert table[:2] == ["| test | tested | required | measured | result |", "| --- | --- | --- | --- | --- |"]
    assert table[2] == "| T1 | something | nothing broken | runs 1, share 0.5, kind made, 0 s | passed |"
    assert len(table) == 5


def test_a_trial_that_fails_itself_does_not_end_the_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: Any, progress: Progress) -> Outcome:
        raise RuntimeError("it did not start")

    good, runs = made_trial()
    assert main([], {"T1": replace(good, run=fail), "T2": good}, tmp_path) == 1
    printed = capsys.readouterr().err
    assert "T1: the test itself failed: RuntimeError: it did not start" in printed
    assert "T1: FAILED after 0 s" in printed
    assert "T2: passed after 0 s" in printed
    assert len(runs) == 1


def test_mistakes_of_the_caller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--only", "T99"], {"T1": made_trial()[0]}, tmp_path)
    assert caught.value.code == 2
    (tmp_path / "results.json").write_text("[")
    assert main([], {"T1": made_trial()[0]}, tmp_path) == 2
    assert "results.json: not valid JSON" in capsys.readouterr().err


def test_files_of_every_trial_are_there() -> None:
    assert [name for trial in TRIALS.values() for name in trial.files if not (ROOT / name).is_file()] == []
    done = subprocess.run([sys.executable, "-m", "torture", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--fresh" in done.stdout


# T29, memory limits; T31, files that change while they are served


def test_commands_under_limits_of_memory() -> None:
    commands = ("pretrain small", "embed small", "embed large")
    outcome = memory_limits.run(memory_limits.LimitSettings((1,), commands), Silent())
    assert outcome.failures == []
    assert (outcome.figures["results"], outcome.figures["refusals"]) == (1, 2)


@pytest.mark.parametrize(
    ("code", "err", "problem"),
    [
        (0, "", None),
        (2, "cloze: error: not enough memory; use less", None),
        (2, "cloze: error: no such file", "the error message does not mention memory: cloze: error: no such file"),
        (1, "cloze: error: RuntimeError: memory (a bug in cloze)", "exit code 1: cloze: error: RuntimeError: memory"),
        (-9, "", "exit code -9: nothing"),
        (2, "Traceback (most recent call last):\nMemoryError", "exit code 2: MemoryError"),
    ],
)
def test_bad_ends_under_a_limit_are_caught(code: int, err: str, problem: str | None) -> None:
    found = memory_limits.Ended(code, err).problem
    assert found == problem if problem is None else found is not None and found.startswith(problem)


def test_files_that_change_under_a_service() -> None:
    outcome = changing_files.run(changing_files.ChangeSettings(rounds=1, precisions=("auto",)), Silent())
    assert outcome.failures == []
    assert isinstance(outcome.figures["damages"], int)
    assert outcome.figures["damages"] >= 5 * 5


def test_other_answers_are_caught() -> None:
    before = {"vectors": [[0.1, 0.2]], "model": "a"}
    assert changing_files.same({"vectors": [[0.1 + 1e-7, 0.2]], "model": "a"}, before)
    assert not changing_files.same({"vectors": [[0.1, 0.0]], "model": "a"}, before)
    assert not changing_files.same({"vectors": [[0.1]], "model": "a"}, before)
    assert not changing_files.same({"vectors": [[0.1, float("nan")]], "model": "a"}, before)
