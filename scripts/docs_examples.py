"""Griffe extension for the documentation site: show ``Example:`` sections of docstrings as code.

Griffe knows the section as ``Examples:`` only, and would render the lines of an ``Example:`` as running text.
"""

import re
from typing import Any

import griffe

_TITLE = re.compile(r"^( *)Example:[ ]*$", re.MULTILINE)


class ExampleSections(griffe.Extension):  # type: ignore[misc]
    """Rename the section in the docstring of every function, class and attribute."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rename the section in one docstring (Griffe event)."""
        if obj.docstring is not None:
            obj.docstring.value = _TITLE.sub(r"\1Examples:", obj.docstring.value)
