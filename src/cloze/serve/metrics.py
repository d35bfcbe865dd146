"""Prometheus metrics: requests, and where their time goes (tokenization, queue, inference)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)


class Metrics:
    """The metrics of one service, in its own registry, since a process may have several services."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "cloze_requests", "Number of responses, by route and status.", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "cloze_request_seconds",
            "Time from receiving a request to the end of its response.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("cloze_requests_in_flight", "Number of requests in progress.", registry=registry)
        self.tokenization_seconds = Histogram(
            "cloze_tokenization_seconds", "Time for tokenizing requests.", buckets=_SECONDS, registry=registry
        )
        self.queue_seconds = Histogram(
            "cloze_queue_seconds",
            "Time that an input waited in the queue.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_tokens = Gauge("cloze_queue_tokens", "Number of waiting tokens.", ["model"], registry=registry)
        self.inference_seconds = Histogram(
            "cloze_inference_seconds",
            "Time for computing a batch.",
            ["model", "operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_tokens = Histogram(
            "cloze_batch_tokens", "Number of tokens per batch.", ["model"], buckets=_TOKENS, registry=registry
        )
        self.tokens = Counter("cloze_tokens", "Number of computed tokens.", ["model"], registry=registry)
        self.failures = Counter(
            "cloze_batch_failures",
            "Number of batches on which a model failed: by an exception, or by results that are not finite.",
            ["model"],
            registry=registry,
        )
        self.dropped = Counter(
            "cloze_dropped",
            "Number of abandoned requests: the client disconnected, or the deadline passed.",
            ["why"],
            registry=registry,
        )
        ProcessCollector(registry=registry)  # memory, descriptors, CPU

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
