"""``cloze compare``: architectures and variants of BERT on one corpus, with one vocabulary and one budget.

The package is not named ``compare``, because ``cloze.compare`` is the function.
"""
