"""Tasks that a model can be fine-tuned for. One folder per kind of task, each with its ``TaskKind`` descriptor.

- ``kind.py`` defines ``TaskKind``; ``registry.py`` is the table of kinds and finds tasks by name.
- ``tables.py`` (files -> records), ``in_memory.py`` (data frames, lists -> records) and ``rows.py`` (records -> text,
  pair, label) read the user's data; ``clue.py`` reads the published CLUE files.
- ``examples.py`` (examples, labels, splits), ``metrics.py``, ``intervals.py``, ``baselines.py`` and ``reports.py`` are
  shared by all kinds; ``comparisons.py`` compares runs.
- Each kind's folder has ``kind.py`` (rows -> examples -> training items, and the descriptor; the first part is in
  ``examples.py`` where it is long) and, as needed, ``decoding.py`` (logits -> results, scores).

Only ``decoding.py`` of answering, choice and tagging imports torch. Descriptors import decoding modules when they are
called, so that importing this package stays fast.
"""
