"""How far a training is, by steps or by the clock, and the learning rate that belongs there (appendix A.2)."""

from dataclasses import dataclass

from cloze.train.settings import LoopSettings


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up and a linear way back to zero, over so many steps, so many hours, or whichever ends first."""

    steps: int | None
    hours: float | None
    warmup: float
    peak: float

    @classmethod
    def of(cls, settings: LoopSettings) -> "Schedule":
        """The schedule that the settings describe."""
        return cls(settings.steps, settings.hours, settings.warmup, settings.rate)

    def progress(self, step: int, seconds: float) -> float:
        """The share that is done before a step, counted from 0; 1 or more at the end."""
        by_steps = step / self.steps if self.steps else 0.0
        by_clock = seconds / (3600 * self.hours) if self.hours else 0.0
        return max(by_steps, by_clock)

    def rate(self, step: int, seconds: float) -> float:
        """The learning rate of a step."""
        progress = self.progress(step, seconds)
        if progress < self.warmup:
            # The first step moves, too.
            return self.peak * min(1.0, (progress + 1 / (self.steps or 1000)) / self.warmup)
        return self.peak * max(0.0, 1 - progress) / (1 - self.warmup)

    def expected_steps(self, step: int, seconds: float) -> int | None:
        """How many steps it will have been, judging by those so far; None while nobody can tell."""
        progress = self.progress(step, seconds)
        if self.steps is not None and (not self.hours or step == 0 or progress <= step / self.steps):
            return self.steps
        return max(step, round(step / progress)) if step and progress else None
