"""What a folder must have for a question, and what to say where it has not."""

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.model import Bert, HeadName

# Where a head comes from.
REMEDY = "load a folder that has one"
REMEDIES: dict[HeadName, str] = {
    "sequence": f"{REMEDY}, or make one with cloze finetune classify",
    "span": f"{REMEDY}, or make one with cloze finetune answer",
    "choice": f"{REMEDY}, or make one with cloze finetune choose",
}


def need_head(bert: Bert, head: HeadName) -> None:
    """Refuse to go on without this head."""
    if head not in bert.heads:
        there = ", ".join(bert.head_names) or "none"
        raise RequestError(f"this model has no {head!r} head (its heads: {there}); {REMEDIES.get(head, REMEDY)}")


def need_task(bert: Bert, task: TaskLabels | None, kind: str) -> TaskLabels:
    """What the outputs of the sequence head mean, if it was trained for this kind of task."""
    need_head(bert, "sequence")
    if task is None or task.kind != kind:
        raise RequestError(f"this model was not trained to {kind}; its head does: {task.kind if task else 'nothing'}")
    return task
