"""Analyse attention heads: patterns with null distributions, surveys over a corpus, pruning, and views as pages."""
