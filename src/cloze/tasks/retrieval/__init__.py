"""Retrieval: queries, documents and relevance judgements; training pairs; the metrics of rankings."""
