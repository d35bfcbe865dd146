"""Prepare shards as cluster jobs, on Slurm or Ray, through the executors of ``datatrove``.

Each job builds one shard with the same function and from the same work folder as a local worker. The work folder and
the text files must be on a file system that all machines share. Interrupting the command does not stop Slurm jobs.
Re-running it checks which shards exist, waits for running jobs, and submits new jobs for missing shards.
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
# Polling interval, also used as the delay between the end of a job and the last check: cluster file systems may lag.
POLL_SECONDS = 10.0
_COMPLETIONS = "completions"

ListMissing = Callable[[], list[int]]


class ShardJob:
    """The pipeline step of a job in the form that datatrove expects; it is pickled and sent to the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002 (datatrove's signature)
        """Build the shard whose number is the rank of the job."""
        with closing(ShardMaker(Path(self.folder))) as maker:
            maker.make(rank)


def check_engine(settings: EngineSettings) -> None:
    """Raise an error if the packages or programs of an engine are missing."""
    if settings.engine == "local":
        return
    needed = ["datatrove", *(["ray"] if settings.engine == "ray" else [])]
    for name in needed:
        if find_spec(name) is None:
            raise ConfigError(
                f"engine is {settings.engine}, which needs {name}; install it with: pip install 'cloze-bert[cluster]'"
            )
    if settings.engine == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("engine is slurm, but sbatch was not found; run the command on a machine of the cluster")


def make_on_cluster(
    folder: Path, count: int, missing: ListMissing, settings: EngineSettings, progress: Progress
) -> None:
    """Submit jobs for those of ``count`` shards that are missing, and return when all exist."""
    logs = folder / CLUSTER
    # Re-run completed jobs whose shard is missing.
    for shard in missing():
        (logs / _COMPLETIONS / f"{shard:05d}").unlink(missing_ok=True)
    if settings.engine == "slurm":
        _run_on_slurm(folder, count, missing, settings, progress)
    else:
        _run_on_ray(folder, count, settings)
    if left := missing():
        raise ClozeError(
            f"{folder}: the jobs have ended, but {len(left)} of {count} shards are missing (the first is "
            f"{left[0]:05d}); see {logs}/logs for the reason; the finished shards are saved: run the same command to "
            "resume"
        )


def slurm_executor(folder: Path, count: int, settings: EngineSettings) -> Any:
    """Return an executor that submits one Slurm job per shard."""
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


def _run_on_slurm(folder: Path, count: int, missing: ListMissing, settings: EngineSettings, progress: Progress) -> None:
    record = folder / CLUSTER / _JOB
    job = str(read_json(record, ClozeError)["job"]) if record.is_file() else None
    if job is None or not _is_queued(job):
        executor = slurm_executor(folder, count, settings)
        try:
            executor.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise ClozeError(f"sbatch rejected the jobs ({error}); see its message above") from error
        job = str(executor.job_id)
        replace_json(record, {"job": job})
    progress.say(f"waiting for Slurm job {job}; Ctrl-C stops waiting but does not cancel the job")
    while left := missing():
        progress.advance("shards", count - len(left), count)
        is_queued = _is_queued(job)
        time.sleep(POLL_SECONDS)
        if not is_queued:
            return


def _is_queued(job: str) -> bool:
    queue = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True)
    return queue.returncode == 0 and bool(queue.stdout.strip())


def _run_on_ray(folder: Path, count: int, settings: EngineSettings) -> None:
    import ray
    from datatrove.executor.ray import RayPipelineExecutor

    started_here = not ray.is_initialized()
    if started_here:
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
        if started_here:
            ray.shutdown()
