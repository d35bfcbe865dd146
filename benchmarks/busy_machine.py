"""Compare the number of threads that cloze chooses with fixed numbers, on an idle and on a busy machine.

    python benchmarks/busy_machine.py [--only training fp32 int8 service] [--busy 0 1 2] [--rounds 3] [--seconds 2]

Variants: cloze without --threads, and fixed numbers of threads (1 and 2 unless --fixed is given) with libgomp's default
spinning, as in plain PyTorch. Each variant runs in its own process; they alternate, round by round, while the given
number of other processes run ``while True: pass``. Prints for each workload and load the median speed and the speed of
each round (tokens per second in training, texts per second otherwise), and the ratio of cloze to the best fixed number.

training pre-trains the preset mini on the bundled books; start-up is excluded. fp32 and int8 embed paragraphs with
--model (the shipped model by default). service runs `cloze serve` in int8, with clients in threads of this process.
"""

import argparse
import http.client
import json
import logging
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

WORKLOADS = ("training", "fp32", "int8", "service")
CHOSEN = "cloze"
DEFAULT_SPIN = "300000"  # libgomp's default
BUSY = "while True: pass"
TEXTS, TEXTS_PER_REQUEST, CLIENTS = 256, 8, 4
STEPS = 6  # training steps per turn


def main() -> None:
    """Parse the arguments and print one table per load."""
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the busy processes with this one
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2], help="numbers of competing busy processes")
    parser.add_argument("--fixed", nargs="+", type=int, default=[1, 2], help="fixed numbers of threads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of one turn of prediction")
    parser.add_argument("--model", default="cloze-mini")
    arguments = parser.parse_args()
    variants = [*(str(count) for count in arguments.fixed), CHOSEN]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        if "training" in arguments.only:
            write_corpus(scratch)
        rates = {
            workload: {
                variant: stack.enter_context(measured(workload, variant, scratch, arguments)) for variant in variants
            }
            for workload in arguments.only
        }
        for busy in arguments.busy:
            with busy_processes(busy):
                for workload, workers in rates.items():
                    compare(workload, busy, workers, arguments.rounds, arguments.seconds)


def compare(workload: str, busy: int, workers: dict[str, Any], rounds: int, seconds: float) -> None:
    """Alternate between the variants, starting each round with a different one, and print their speeds."""
    found: dict[str, list[float]] = {variant: [] for variant in workers}
    for number in range(rounds):
        first = number % len(workers)
        for variant in [*workers][first:] + [*workers][:first]:
            found[variant].append(workers[variant](seconds))
    medians = {variant: median(values) for variant, values in found.items()}
    best = max(value for variant, value in medians.items() if variant != CHOSEN)
    print(f"\n{workload}, {busy} other busy processes: cloze / best fixed {medians[CHOSEN] / best:.2f}")
    for variant, values in found.items():
        name = variant if variant == CHOSEN else f"{variant} threads"
        print(f"  {name:<10}{medians[variant]:>9.0f}   ({', '.join(f'{value:.0f}' for value in values)})", flush=True)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run the given number of processes in a busy loop."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    time.sleep(1 if count else 0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def environment(variant: str) -> dict[str, str]:
    """Return the environment of a variant; with a fixed number, threads spin as in plain PyTorch."""
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
    return plain if variant == CHOSEN else plain | {"GOMP_SPINCOUNT": DEFAULT_SPIN}


@contextmanager
def measured(workload: str, variant: str, scratch: Path, arguments: argparse.Namespace) -> Iterator[Any]:
    """Start the process of a variant; yield a function that returns its speed over a number of seconds."""
    if workload == "service":
        with service(variant, arguments.model) as rate:
            yield rate
        return
    command = [sys.executable, __file__, "--worker", f"{workload} {variant}", str(scratch), arguments.model]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(variant)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read, write = process.stdout.readline, process.stdin

        def rate(seconds: float) -> float:
            print(seconds, file=write, flush=True)
            return float(read())

        if not read():
            sys.exit(f"the worker process for {workload}, {variant} failed")
        try:
            yield rate
        finally:
            process.kill()


def work(job: str, scratch: Path, model: str) -> None:
    """Run as the process of a variant: for each line with a number of seconds, work that long and print the speed."""
    logging.disable(logging.WARNING)  # hides the warnings about truncated texts
    workload, variant = job.split()
    from cloze.threads import request_threads, shorten_spinning

    if variant == CHOSEN:
        shorten_spinning()  # as the command line does; variants with a fixed number set the variable themselves
    request_threads(None if variant == CHOSEN else int(variant))
    turn = training(scratch, variant) if workload == "training" else embedding(model, workload)
    turn(0.0)
    print("ready", flush=True)
    for line in sys.stdin:
        print(turn(float(line)), flush=True)


def books() -> str:
    """Return the bundled books."""
    import cloze

    return lzma.decompress((Path(cloze.__file__).parent / "demo/data/books.txt.xz").read_bytes()).decode("utf-8")


def paragraphs() -> list[str]:
    """Return paragraphs of the bundled books."""
    texts = (" ".join(paragraph.split()) for paragraph in books().split("\n"))
    return [text for text in texts if len(text) > 200][:TEXTS]


def write_corpus(scratch: Path) -> None:
    """Prepare the first part of the bundled books as a corpus."""
    (scratch / "text.txt").write_text(books()[:1_000_000], encoding="utf-8")
    words = ["prepare", str(scratch / "text.txt"), "--vocab", "cloze-mini", "--out", str(scratch / "corpus")]
    subprocess.run([sys.executable, "-m", "cloze", *words], check=True, capture_output=True)


def training(scratch: Path, variant: str) -> Any:
    """Return a function that trains some steps and returns the tokens per second."""
    import cloze

    class Printer:
        def say(self, message: str) -> None:
            print(f"    training, {message}", file=sys.stderr)

        def advance(self, *_: object, **__: object) -> None:
            pass

    def turn(_: float) -> float:
        settings = cloze.PretrainSettings(preset="mini", steps=STEPS, batch_size=32, max_length=128)
        run = cloze.pretrain(scratch / "corpus", scratch / variant, settings=settings, fresh=True, progress=Printer())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        return float(next(row["tokens_per_second"] for row in rows if "tokens_per_second" in row))

    return turn


def embedding(model: str, precision: Any) -> Any:
    """Return a function that embeds paragraphs for some seconds and returns the texts per second."""
    import cloze

    loaded, texts = cloze.load(model, precision=precision), paragraphs()

    def turn(seconds: float) -> float:
        start, done = time.perf_counter(), 0
        while not done or time.perf_counter() - start < seconds:
            loaded.embed(texts)
            done += len(texts)
        return done / (time.perf_counter() - start)

    return turn


@contextmanager
def service(variant: str, model: str) -> Iterator[Any]:
    """Start ``cloze serve``; yield a function that returns the texts embedded per second."""
    words = ["serve", model, "--port", "0", "--json", "--precision", "int8"]
    words += [] if variant == CHOSEN else ["--threads", variant]
    command = [sys.executable, "-m", "cloze", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(variant)
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            host = json.loads(line)["address"].removeprefix("http://")
            texts = paragraphs()
            bodies = [
                json.dumps({"texts": texts[start : start + TEXTS_PER_REQUEST]})
                for start in range(0, len(texts), TEXTS_PER_REQUEST)
            ]
            yield lambda seconds: ask(host, bodies, seconds)
        finally:
            process.kill()


def ask(host: str, bodies: Sequence[str], seconds: float) -> float:
    """Send requests from a few clients, one at a time each; return the texts per second."""
    start = time.perf_counter()
    done = [0] * CLIENTS

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        turn = number
        while time.perf_counter() - start < seconds:
            connection.request("POST", "/embed", bodies[turn % len(bodies)], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            done[number] += TEXTS_PER_REQUEST
            turn += CLIENTS

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
