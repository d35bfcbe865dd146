"""Tasks: what a model is fine-tuned for. One folder per kind of task, each with its ``TaskKind`` descriptor.

- ``kind.py`` defines ``TaskKind``; ``registry.py`` is the table of kinds and finds tasks by name.
- ``tables.py`` (files -> records), ``in_memory.py`` (data frames, lists -> records) and ``rows.py`` (records -> text,
  pair, label) read the user's data; ``clue.py`` reads the published CLUE files.
- ``examples.py`` (examples, labels, splits), ``metrics.py``, ``intervals.py``, ``baselines.py`` and ``reports.py``
  (scores, their intervals, what they are compared with, reports) are shared; ``comparisons.py`` pairs runs.
- Each folder: ``kind.py`` (the descriptor), ``examples.py`` (rows -> examples -> training items) and ``decoding.py``
  (logits -> results, scores), where the kind needs them.

Only ``decoding.py`` of answering, choice and tagging imports torch. Descriptors import decoding modules when they are
called, so that importing this package stays fast.
"""
