"""Outcomes of requests: errors, each with an HTTP status and a machine-readable kind, and the metrics of the service.

ServiceError                  a RequestError with an HTTP status
    InvalidRequestError  400  not JSON, not the schema of the route, or not supported by the model
    AuthenticationError  401  the key is missing or wrong
    OriginError          403  sent by a page on another site
    NotFoundError        404  no such model
    DeadlineError        408  the body did not arrive or the result was not ready in time
    TooLargeError        413  exceeds a limit: body size, texts, characters or tokens
    WrongHostError       421  sent to a host name that this service does not trust
    OverloadedError      429  the queue is full; the response has Retry-After
    ModelFailedError     503  the model failed; counted in the metrics
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from cloze.errors import RequestError


class ServiceError(RequestError):
    """A request that is rejected or has failed.

    Args:
        message: What is wrong, and how to correct it.
        kind: A machine-readable kind; by default, the kind of the class.
        retry_after: Seconds after which the client may try again.
    """

    status = 400
    kind = "invalid_request"

    def __init__(self, message: str, kind: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind or self.kind, retry_after


class InvalidRequestError(ServiceError):
    """The request is not valid for this route or model."""


class AuthenticationError(ServiceError):
    """The key is missing or wrong."""

    status, kind = 401, "key_needed"


class OriginError(ServiceError):
    """The request comes from a page on another site."""

    status, kind = 403, "wrong_origin"


class NotFoundError(ServiceError):
    """The requested model or resource does not exist."""

    status, kind = 404, "not_found"


class DeadlineError(ServiceError):
    """The request took too long."""

    status, kind = 408, "deadline"


class TooLargeError(ServiceError):
    """The request exceeds a limit."""

    status, kind = 413, "too_large"


class WrongHostError(ServiceError):
    """The request is addressed to another host."""

    status, kind = 421, "wrong_host"


class OverloadedError(ServiceError):
    """The service has no capacity for this request now."""

    status, kind = 429, "overloaded"


class ModelFailedError(ServiceError):
    """The model raised an exception or returned values that are not finite."""

    status, kind = 503, "model_failed"


def error_body(kind: str, message: str) -> dict[str, object]:
    """Return the body of every error response, in the format of OpenAI's API."""
    return {"error": {"type": kind, "message": message, "code": kind, "param": None}}


# -- metrics -----------------------------------------------------------------------------------------------------------


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
        self.search_seconds = Histogram(
            "cloze_search_seconds", "Time for searching the index.", buckets=_SECONDS, registry=registry
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
