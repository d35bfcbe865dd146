"""What a search over several fine-tuning runs can be told. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass

from cloze.errors import ConfigError


@dataclass(frozen=True)
class SearchSettings:
    """Whether fine-tuning is one run or several."""

    grid: bool = False
    """Try the paper's 18 settings (batch 16, 32; rate 5e-5, 3e-5, 2e-5; epochs 2, 3, 4), then use the best."""
    seeds: int = 1
    """Runs with different seeds; the best one's model is kept, and mean and spread are told."""
    folds: int = 0
    """Where there is no dev set: so many models, each scored on the rows that it has not seen."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; at least 1 was expected")
        if self.folds == 1 or self.folds < 0:
            raise ConfigError(f"folds is {self.folds}; at least 2 was expected")
        if self.folds and (self.grid or self.seeds > 1):
            raise ConfigError("folds stand alone; a grid and seeds need a dev set: use --dev, or leave them out")

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return self.grid or self.seeds > 1 or self.folds > 0
