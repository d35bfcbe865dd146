"""One request after another: limits, reading, waiting for a batch, and giving up in time."""

import asyncio
import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from cloze.predict.fill_mask import count_blanks
from cloze.serve.batcher import AbandonedError, Batcher
from cloze.serve.errors import Invalid, TooLarge, TooSlow
from cloze.serve.metrics import Metrics
from cloze.serve.models import Library, Served
from cloze.serve.operations import Read, Reader, Usage, read
from cloze.serve.queue import Job, Kind
from cloze.serve.schemas import Bodies
from cloze.serve.settings import ServiceSettings

CHARACTERS_A_WORD = 6  # with the space after it


class ClientGoneError(Exception):
    """Nobody is there to be answered."""


@dataclass(frozen=True)
class Answered:
    """The results of a request's inputs, in their order, and who gave them."""

    served: Served
    results: list[Any]
    usage: Usage


class Service:
    """What all routes share."""

    def __init__(self, settings: ServiceSettings, library: Library, metrics: Metrics) -> None:
        self.settings, self.library, self.metrics = settings, library, metrics
        self.bodies, self.reader = Bodies(settings.limits), Reader(metrics)
        self.draining = False
        self.ended = True  # whether no thread computes any more, once the app has shut down

    async def ask(
        self,
        request: Request,
        name: str | None,
        operation: str,
        inputs: Sequence[Any],
        parts: Sequence[Sequence[str]],
        **options: Any,
    ) -> Answered:
        """The results of inputs, whose texts are ``parts``; a refusal where a limit, a model or the time says no."""
        deadline = time.monotonic() + self.settings.limits.timeout
        served = self.library.find(name, operation)
        characters = self.check_size(parts)
        found: Read = await self.reader.run(characters, read, served, operation, inputs, parts, options)
        usage, bound = found.usage, served.batcher.queue.bound
        if usage.tokens > bound:
            raise TooLarge(
                f"{usage.tokens} tokens to compute for one request, of at most {bound}; send fewer or shorter texts",
                "too_many_tokens",
            )
        job = Job(Kind(operation, served.adapter, tuple(options.items())), found.inputs, usage.lengths, deadline)
        served.batcher.submit(job)
        return Answered(served, await self._wait(request, served.batcher, job), usage)

    def check_size(self, parts: Sequence[Sequence[Sized]]) -> int:
        """Refuse more texts or characters (or ids, each of which has some) than a request may have; return these."""
        limits = self.settings.limits
        texts = sum(map(len, parts))
        if not texts:
            raise Invalid("there is no text; give at least one", "no_text")
        if texts > limits.inputs:
            raise TooLarge(f"{texts} texts in one request, of at most {limits.inputs}; send fewer", "too_many_inputs")
        characters = sum(len(text) for some in parts for text in some)
        if characters > limits.characters:
            raise TooLarge(
                f"{characters} characters in one request, of at most {limits.characters}; send fewer or shorter texts",
                "too_many_characters",
            )
        return characters

    def check_proposals(self, texts: Sequence[str], top: int, *, joint: bool) -> None:
        """Refuse more words for blanks than an answer may hold."""
        limit = self.settings.limits.proposals
        # Blanks that are filled together are told as whole texts, as many as are wanted.
        words = sum(count_blanks(text) + (len(text) // CHARACTERS_A_WORD if joint else 0) for text in texts)
        if words * top > limit:
            raise TooLarge(
                f"{words * top} words in one answer, of at most {limit}; send fewer blanks, or ask for a smaller top",
                "too_many_proposals",
            )

    async def _wait(self, request: Request, batcher: Batcher, job: Job) -> list[Any]:
        """The job's results, unless its time is over or the client leaves before."""
        answer = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(_departure(request))
        either: list[asyncio.Future[Any]] = [answer, gone]
        try:
            left = job.deadline - time.monotonic()
            done, _ = await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            # Who computes may be the first to see that the time is over.
            abandoned = answer in done and (answer.cancelled() or isinstance(answer.exception(), AbandonedError))
            if answer in done and not abandoned:
                return answer.result()
            self.metrics.dropped.labels("client" if gone in done else "deadline").inc()
            if gone in done:
                raise ClientGoneError
            raise TooSlow(f"no answer within {self.settings.limits.timeout:g} s; send less at a time, or try again")
        finally:
            gone.cancel()
            if not job.future.done():
                batcher.cancel(job)


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
