"""Cluster jobs tested without a cluster: the submitted jobs, and stand-ins for Slurm's programs."""

import os
import stat
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import cloze.corpus.preparation.cluster as module
from cloze.corpus.preparation.cluster import ShardJob, check_engine, slurm_executor
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import EngineSettings, PrepareSettings
from cloze.corpus.shards import read_manifest
from cloze.errors import ClozeError, ConfigError
from tests.corpus.preparation.test_prepare import Listener, contents

needs_datatrove = pytest.mark.skipif(find_spec("datatrove") is None, reason="needs the extra cloze-bert[cluster]")
# datatrove opens files with fsspec and leaves some to the garbage collector.
ours_alone = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
SHARDS = PrepareSettings(0.2, shard_size=0.02)
SLURM = EngineSettings("slurm", partition="cpu", sbatch=("account=physics",), time="01:00:00", memory=3)

SBATCH = """#!/bin/sh
# Runs the jobs of an array one after the other, where Slurm would run them elsewhere.
for last; do :; done
grep -q merge_stats "$last" && echo "Submitted batch job 2" && exit 0
cp "$last" "{folder}/script"
[ -n "{refuse}" ] && echo "sbatch: error: invalid partition" >&2 && exit 1
for rank in $(seq 0 $(sed -n 's/.*--array=0-\\([0-9]*\\).*/\\1/p' "$last")); do
    [ "$rank" = "{lost}" ] || SLURM_ARRAY_TASK_ID=$rank SLURM_NODELIST=here sh "$last" > "{folder}/log$rank" 2>&1
done
echo "Submitted batch job 17"
"""
PROGRAMS = {
    "srun": '#!/bin/sh\nwhile [ "$1" != launch_pickled_pipeline ]; do shift; done\nexec "$@"\n',
    "scontrol": "#!/bin/sh\necho here\n",
    "squeue": "#!/bin/sh\nexit 0\n",
}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's programs; returns the folder with their recorded input."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, program in PROGRAMS.items():
        write_program(folder / name, program)
    write_sbatch(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    return folder


def write_program(path: Path, program: str) -> None:
    path.write_text(program, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def write_sbatch(folder: Path, refuse: str = "", lost: int = -1) -> None:
    write_program(folder / "sbatch", SBATCH.format(folder=folder, refuse=refuse, lost=lost))


@needs_datatrove
@ours_alone
def test_slurm_is_asked_for_a_job_a_shard(tmp_path: Path) -> None:
    executor = slurm_executor(tmp_path / "data.partial", 40, SLURM)
    script = executor.get_launch_file_contents(executor.get_sbatch_args(40), "run")
    for line in (
        "#SBATCH --partition=cpu",
        "#SBATCH --time=01:00:00",
        "#SBATCH --mem-per-cpu=3G",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --array=0-39",
        "#SBATCH --account=physics",
        "#SBATCH --job-name=cloze-prepare",
    ):
        assert line in script.splitlines()
    assert "qos" not in script
    assert str(Path(sys.executable).parent) in script
    limited = slurm_executor(tmp_path, 40, EngineSettings("slurm", workers=5, partition="cpu"))
    assert limited.get_sbatch_args(40)["array"] == "0-39%5"


@needs_datatrove
@ours_alone
def test_jobs_make_the_same_corpus(text: Path, vocabulary: Path, tmp_path: Path, slurm: Path) -> None:
    here = prepare([text], vocabulary, tmp_path / "here", settings=SHARDS)
    ear = Listener()
    there = prepare([text], vocabulary, tmp_path / "there", settings=SHARDS, engine=SLURM, progress=ear)
    assert contents(there) == contents(here)
    assert len(read_manifest(there)["shards"]) > 2
    assert "waiting for Slurm job 17; Ctrl-C stops waiting but does not cancel the job" in ear.said


@needs_datatrove
@ours_alone
def test_lost_job_is_told_and_the_command_goes_on(text: Path, vocabulary: Path, tmp_path: Path, slurm: Path) -> None:
    write_sbatch(slurm, lost=1)
    message = r"the jobs have ended, but 1 of \d+ shards are missing \(the first is 00001\);.*run the same command"
    with pytest.raises(ClozeError, match=message):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=SLURM)
    write_sbatch(slurm)
    there = prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=SLURM)
    # one job for the single remaining shard
    assert "#SBATCH --array=0-0" in (slurm / "script").read_text(encoding="utf-8").splitlines()
    here = prepare([text], vocabulary, tmp_path / "here", settings=SHARDS)
    assert contents(there) == contents(here)


@needs_datatrove
@ours_alone
def test_refused_jobs_are_told(text: Path, vocabulary: Path, tmp_path: Path, slurm: Path) -> None:
    write_sbatch(slurm, refuse="yes")
    with pytest.raises(ClozeError, match=r"sbatch rejected the jobs \(.*exit status 1"):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=SLURM)


@needs_datatrove
@ours_alone
def test_jobs_that_still_run_are_waited_for(text: Path, vocabulary: Path, tmp_path: Path, slurm: Path) -> None:
    write_sbatch(slurm, lost=1)
    with pytest.raises(ClozeError, match="shards are missing"):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=SLURM)
    # The job is reported as running; a second call of sbatch would fail.
    write_sbatch(slurm, refuse="yes")
    mark = slurm / "asked"
    write_program(slurm / "squeue", f"#!/bin/sh\n[ -e {mark} ] || echo '17 R'\ntouch {mark}\n")
    with pytest.raises(ClozeError, match="shards are missing"):
        prepare([text], vocabulary, tmp_path / "data", settings=SHARDS, engine=SLURM)
    assert mark.exists()


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_missing_extra_is_named(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    message = rf"engine is {engine}, which needs datatrove; install it with: pip install 'cloze-bert\[cluster\]'"
    with pytest.raises(ConfigError, match=message):
        check_engine(EngineSettings(engine, partition="cpu"))  # type: ignore[arg-type]
    check_engine(EngineSettings())


def test_machine_without_slurm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: object())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="engine is slurm, but sbatch was not found; run the command on a machine"):
        check_engine(SLURM)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers is 0; expected at least 1"),
        ({"memory": 0}, "memory is 0; expected at least 1 gigabyte"),
        ({"engine": "slurm"}, "engine is slurm, but partition is missing; 'sinfo' lists the partitions of the cluster"),
        ({"sbatch": ("account",)}, "sbatch is 'account'; expected name=value, as in account=physics"),
    ],
)
def test_impossible_engines_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**settings)  # type: ignore[arg-type]


def test_a_job_travels_by_its_folder(tmp_path: Path) -> None:
    assert ShardJob(tmp_path).__dict__ == {"folder": str(tmp_path.resolve())}


@needs_datatrove
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra cloze-bert[cluster]")
@pytest.mark.filterwarnings("ignore")
def test_ray_makes_the_same_corpus(
    text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage reports over the network
    here = prepare([text], vocabulary, tmp_path / "here", settings=SHARDS)
    engine = EngineSettings("ray", workers=2, memory=1)
    assert contents(prepare([text], vocabulary, tmp_path / "there", settings=SHARDS, engine=engine)) == contents(here)
