"""Attention views: the data, the self-contained page and the notebook display."""
