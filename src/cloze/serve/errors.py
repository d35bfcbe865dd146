"""Errors of single requests, each with an HTTP status and a machine-readable kind.

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
