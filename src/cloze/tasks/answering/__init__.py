"""Extractive question answering: SQuAD files, windows and metrics."""
