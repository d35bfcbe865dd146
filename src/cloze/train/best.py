"""Early stopping: the weights that scored best on dev are kept, and waiting for better ones has an end."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cloze.files import replaced_file
from cloze.train.run import BEST, Run


class Best:
    """Watches a dev score of a run. All that it knows lies in the run's folder, so that a resumed run knows it too."""

    def __init__(self, run: Run, model: nn.Module, metric: str, patience: int) -> None:
        self._run, self._model, self._metric, self._patience = run, model, f"dev_{metric}", patience

    @property
    def path(self) -> Path:
        """Where the best weights lie."""
        return self._run.folder / BEST

    def look(self, score: float) -> None:
        """Keep the weights if no evaluation before was as good."""
        if score > max(self._history(), default=-float("inf")):
            with replaced_file(self.path) as temporary:
                save_file({name: tensor.contiguous() for name, tensor in self._model.state_dict().items()}, temporary)

    def enough(self) -> bool:
        """Whether the last ``patience`` evaluations brought nothing better."""
        history = self._history()
        return bool(history) and len(history) - 1 - history.index(max(history)) >= self._patience

    def restore(self) -> None:
        """Put the best weights back."""
        with torch.no_grad():
            self._model.load_state_dict(load_file(self.path))

    def _history(self) -> list[float]:
        return [row[self._metric] for row in self._run.metrics() if self._metric in row]
