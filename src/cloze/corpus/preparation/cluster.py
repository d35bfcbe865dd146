"""Shards made by the jobs of a cluster, Slurm's or Ray's, through the executors of ``datatrove``.

A job makes one shard with the same function as a process here, from the same work folder, which all machines must
see, as they must see the text files. Whatever ends the waiting, Slurm's jobs go on; the same command looks at what is
there, waits for jobs that are still running, and sends new ones for what is missing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloze.corpus.preparation.shard_maker import ShardMaker
from cloze.corpus.settings import EngineSettings
from cloze.errors import ClozeError, ConfigError
from cloze.files import read_json, replace_json
from cloze.progress import Progress

CLUSTER = "cluster"
_JOB = "job.json"
# Seconds between two looks at the shards, and from a job's end to the last look: file systems of clusters are slow.
POLL_SECONDS = 10.0
_COMPLETIONS = "completions"

Missing = Callable[[], list[int]]


class ShardJob:
    """What a job does, in the form that datatrove asks for; it travels to the job as a pickle."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002 (datatrove's signature)
        """Make the shard with the number of the job."""
        with closing(ShardMaker(Path(self.folder))) as maker:
            maker.make(rank)


def check_engine(settings: EngineSettings) -> None:
    """Refuse an engine whose programs are missing, before any work is done."""
    if settings.engine == "local":
        return
    needed = ["datatrove", *(["ray"] if settings.engine == "ray" else [])]
    for name in needed:
        if find_spec(name) is None:
            raise ConfigError(
                f"engine is {settings.engine}, which needs {name}; install it with: pip install 'cloze-bert[cluster]'"
            )
    if settings.engine == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("engine is slurm, but there is no sbatch here; give the command on a machine of the cluster")


def make_on_cluster(folder: Path, count: int, missing: Missing, settings: EngineSettings, progress: Progress) -> None:
    """Have the missing ones of ``count`` shards made, and return when all are there."""
    logs = folder / CLUSTER
    # A completed job whose shard is gone has to be done again.
    for part in missing():
        (logs / _COMPLETIONS / f"{part:05d}").unlink(missing_ok=True)
    if settings.engine == "slurm":
        _run_on_slurm(folder, count, missing, settings, progress)
    else:
        _run_on_ray(folder, count, settings)
    if left := missing():
        raise ClozeError(
            f"{folder}: the jobs have ended, but {len(left)} of {count} shards are missing (the first is "
            f"{left[0]:05d}); {logs}/logs tells why; the finished ones are kept: the same command goes on"
        )


def slurm_executor(folder: Path, count: int, settings: EngineSettings) -> Any:
    """What submits one job a shard to Slurm."""
    from datatrove.executor.slurm import SlurmPipelineExecutor

    return SlurmPipelineExecutor(
        pipeline=[ShardJob(folder)],
        tasks=count,
        time=settings.time,
        partition=settings.partition,
        mem_per_cpu_gb=settings.memory,
        workers=settings.workers or -1,
        job_name="cloze-prepare",
        qos=None,
        env_command=f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={os.pathsep.join(_search_path())}",
        sbatch_args=dict(value.split("=", 1) for value in settings.sbatch),
        logging_dir=str(folder.resolve() / CLUSTER),
    )


def _search_path() -> list[str]:
    return [path or str(Path.cwd()) for path in sys.path]


def _run_on_slurm(folder: Path, count: int, missing: Missing, settings: EngineSettings, progress: Progress) -> None:
    record = folder / CLUSTER / _JOB
    job = str(read_json(record, ClozeError)["job"]) if record.is_file() else None
    if job is None or not _is_queued(job):
        executor = slurm_executor(folder, count, settings)
        try:
            executor.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise ClozeError(f"sbatch has refused the jobs ({error}); its own words are above") from error
        job = str(executor.job_id)
        replace_json(record, {"job": job})
    progress.say(f"waiting for Slurm's job {job}; Ctrl-C ends the waiting, not the job")
    while left := missing():
        progress.advance("shards", count - len(left), count)
        is_queued = _is_queued(job)
        time.sleep(POLL_SECONDS)
        if not is_queued:
            return


def _is_queued(job: str) -> bool:
    found = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True)
    return found.returncode == 0 and bool(found.stdout.strip())


def _run_on_ray(folder: Path, count: int, settings: EngineSettings) -> None:
    import ray
    from datatrove.executor.ray import RayPipelineExecutor

    ours = not ray.is_initialized()
    if ours:
        ray.init(address=settings.address)
    try:
        RayPipelineExecutor(
            pipeline=[ShardJob(folder)],
            tasks=count,
            workers=settings.workers or -1,
            mem_per_cpu_gb=settings.memory,
            logging_dir=str(folder.resolve() / CLUSTER),
        ).run()
    finally:
        if ours:
            ray.shutdown()
