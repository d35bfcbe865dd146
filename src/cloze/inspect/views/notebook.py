"""``model.attend(...).show()``: the views inside a notebook, or in a file of their own."""

from html import escape
from pathlib import Path

import numpy as np

from cloze.inspect.views.data import View, look, make_view, view_of
from cloze.inspect.views.page import render_page, write_page
from cloze.predict import Attention

# A notebook keeps what it displays in its own file; beyond this it would no longer open well.
_LARGEST = 20_000_000


class Shown:
    """The views of one attention."""

    def __init__(self, view: View) -> None:
        self.view = view

    def save(self, path: str | Path) -> None:
        """Write the views into one file that any browser opens."""
        write_page(self.view, Path(path))

    def _repr_html_(self) -> str:
        """What a notebook displays: a frame that can run its own script and reach nothing of the notebook."""
        size = sum(map(len, self.view.weights.layers)) * 4 // 3
        if size > _LARGEST:
            told = f"{size / 1e6:.0f} MB are too much for a notebook"
            return f"<p>{told}; <code>.save('page.html')</code> writes a file to open.</p>"
        return (
            '<iframe sandbox="allow-scripts allow-downloads" width="100%" height="900" style="border:0" '
            f'title="Attention" srcdoc="{escape(render_page(self.view))}"></iframe>'
        )


def show(attention: Attention) -> Shown:
    """The views of what ``model.attend`` has returned."""
    if attention.origin is not None:
        model, text, pair = attention.origin
        looked = look(model, text, pair, read_mask=False)
        # The model may have changed since, or have answered without some of its heads: then only the weights are sure.
        if np.allclose(looked.attention.weights, attention.weights, atol=1e-5):
            return Shown(make_view(looked))
    return Shown(view_of(attention))
