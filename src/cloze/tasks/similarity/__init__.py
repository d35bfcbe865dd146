"""Sentence similarity: vectors trained on texts alone, scored by pairs with human ratings."""
