"""Why a request is not answered, each reason with a status and a word of its own.

Refusal             a RequestError with an HTTP status
Invalid      400  not JSON, not of the form that the route takes, or nothing that this model can do
KeyNeeded    401  no key, or a wrong one
WrongOrigin  403  a page of another site asks
Unknown      404  no such model
TooSlow      408  the body did not come, or the answer was not ready, in time
TooLarge     413  beyond a limit: the body, the texts, their characters, their tokens
Misdirected  421  for a host that this is not
Overloaded   429  too much is waiting; comes with Retry-After
Failed       503  the model failed on it; counted, and none of the request's doing
"""

from cloze.errors import RequestError


class Refusal(RequestError):  # noqa: N818 (what was refused is the request, not its maker)
    """One request that is not answered; ``kind`` is a word for programs."""

    status = 400
    kind = "invalid_request"

    def __init__(self, message: str, kind: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry_after = kind or self.kind, retry_after


class Invalid(Refusal):
    """Not of the form that was asked for."""


class KeyNeeded(Refusal):
    """No key, or a wrong one."""

    status, kind = 401, "key_needed"


class WrongOrigin(Refusal):
    """Another site's page."""

    status, kind = 403, "wrong_origin"


class Unknown(Refusal):
    """There is nothing of this name."""

    status, kind = 404, "not_found"


class TooSlow(Refusal):
    """Not in time."""

    status, kind = 408, "deadline"


class TooLarge(Refusal):
    """Beyond a limit."""

    status, kind = 413, "too_large"


class Misdirected(Refusal):
    """Meant for another host."""

    status, kind = 421, "wrong_host"


class Overloaded(Refusal):
    """Later, please."""

    status, kind = 429, "overloaded"


class Failed(Refusal):
    """The model failed."""

    status, kind = 503, "model_failed"


def body_of(kind: str, message: str) -> dict[str, object]:
    """The one form of all errors, which is OpenAI's."""
    return {"error": {"type": kind, "message": message, "code": kind, "param": None}}
