"""What looking up POST routes directly gains over FastAPI's own routing: requests/s and event-loop CPU per request.

    python benchmarks/routing.py [--model cloze-mini] [--precision fp32] [--rounds 40] [--requests 320]

Two apps around one service listen on two ports of one event loop, which runs in a thread of its own; they differ only
in their routing. A client process sends small /embed requests to one and then to the other, in turns, over connections
that stay open. The CPU time is that of the event loop's thread: reading, routing, tokenizing and writing, without the
model.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from statistics import median

BODY = json.dumps({"texts": "a ship at sea"}).encode()
REQUEST = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
)


async def send_requests(port: int, count: int) -> None:
    """Send requests one after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()


async def run_client(port: int, requests: int, connections: int) -> None:
    """Print the seconds that all requests took."""
    start = time.perf_counter()
    await asyncio.gather(*(send_requests(port, requests // connections) for _ in range(connections)))
    print(time.perf_counter() - start)


class Servers:
    """Apps that listen on ports of one event loop, in a thread."""

    def __init__(self, apps: Sequence[object]) -> None:
        import uvicorn

        self._servers = [
            uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical", ws="none"))  # type: ignore[arg-type]
            for app in apps
        ]
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in apps]
        self.ports = [listener.getsockname()[1] for listener in self._sockets]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not all(server.started for server in self._servers):
            time.sleep(0.01)

    def _run(self) -> None:
        import uvloop

        async def serve() -> None:
            pairs = zip(self._servers, self._sockets, strict=True)
            await asyncio.gather(*(server._serve([listener]) for server, listener in pairs))

        uvloop.run(serve())

    def cpu_seconds(self) -> float:
        """Return the CPU time of the event loop's thread."""
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.should_exit = True
        self._thread.join(10)


def measure(model: str, precision: str, rounds: int, requests: int, connections: int) -> None:
    """Measure both apps in turns and print the table."""
    from cloze.models import shipped_folder
    from cloze.serve.metrics import Metrics
    from cloze.serve.models import load_models
    from cloze.serve.server import DirectRoutes, make_app
    from cloze.serve.service import Service
    from cloze.serve.settings import ServiceSettings

    metrics, settings = Metrics(), ServiceSettings({"model": str(shipped_folder(model) or model)})
    service = Service(settings, load_models(settings, metrics, precision=precision), metrics)  # type: ignore[arg-type]
    direct, plain = make_app(service), make_app(service)
    routes = plain._app.router.routes  # type: ignore[attr-defined]
    routes[:] = [route for route in routes if not isinstance(route, DirectRoutes)]
    assert len(routes) == len(direct._app.router.routes) - 1  # type: ignore[attr-defined]
    service.models.start()
    servers = Servers([direct, plain])
    names = ("direct lookup", "FastAPI's routing")
    rates: dict[str, list[float]] = {name: [] for name in names}
    costs: dict[str, list[float]] = {name: [] for name in names}
    sent = requests // connections * connections
    for number in range(rounds + 1):  # the first round warms up
        order = list(zip(names, servers.ports, strict=True))
        for name, port in order if number % 2 else reversed(order):
            before = servers.cpu_seconds()
            command = [sys.executable, __file__, "--client", str(port)]
            command += ["--requests", str(requests), "--connections", str(connections)]
            seconds = float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
            if number:
                rates[name].append(sent / seconds)
                costs[name].append(1e6 * (servers.cpu_seconds() - before) / sent)
    servers.stop()
    service.models.drain(5)
    report(names, rates, costs)


def report(names: Sequence[str], rates: dict[str, list[float]], costs: dict[str, list[float]]) -> None:
    """Print medians and ranges, and the ratio of each pair of rounds."""
    print("| routing | requests/s, median (range) | event-loop CPU per request, µs, median (range) |\n|---|---|---|")
    for name in names:
        cells = [f"{median(v):,.0f} ({min(v):,.0f} to {max(v):,.0f})" for v in (rates[name], costs[name])]
        print(f"| {name} | {cells[0]} | {cells[1]} |")
    for title, values in (("requests/s", rates), ("CPU per request", costs)):
        ratios = sorted(first / second for first, second in zip(values[names[0]], values[names[1]], strict=True))
        low, high = median_interval(ratios)
        print(f"{title}: direct / FastAPI, median {median(ratios):.3f} (95 % interval {low:.3f} to {high:.3f})")


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by order statistics (normal approximation of the sign test)."""
    margin = 0.98 * len(ordered) ** 0.5
    low = max(0, int(len(ordered) / 2 - margin))
    return ordered[low], ordered[-1 - low]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cloze-mini")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        asyncio.run(run_client(options.client, options.requests, options.connections))
        return
    measure(options.model, options.precision, options.rounds, options.requests, options.connections)


if __name__ == "__main__":
    main()
