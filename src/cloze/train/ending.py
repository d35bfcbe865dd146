"""The end of a run: its curves, its model, and nothing left that only training needs."""

from cloze.checkpoint import ModelFolder, save_adapter, save_folder
from cloze.train.curves import draw_curves
from cloze.train.run import Run


def end_run(run: Run, contents: ModelFolder) -> None:
    """Write the curves and, last, the model, or what is attached to it: its presence says that the run is over."""
    draw_curves(run.metrics(), run.folder / "curves.png")
    contents.model.cpu()
    (save_folder if contents.adapter is None else save_adapter)(contents, run.model_folder)
    run.clear()
