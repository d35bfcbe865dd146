"""Tasks: what a model is fine-tuned for. One folder per kind of task, each with its ``TaskKind`` descriptor.

- ``kind.py`` defines ``TaskKind``; ``registry.py`` is the table of kinds and finds tasks by name.
- ``tables.py`` (files -> records) and ``rows.py`` (records -> text, pair, label) read the user's files.
- ``examples.py`` (examples, labels, splits), ``metrics.py`` and ``evaluation.py`` (scores, reports) are shared.
- Each folder: ``kind.py`` (the descriptor), reading and examples, and ``decoding.py`` (logits -> results, scores).

Only ``decoding.py`` modules import torch.
"""
