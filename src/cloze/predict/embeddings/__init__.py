"""Sentence and word embeddings: pooling, whitening and quality reports."""
