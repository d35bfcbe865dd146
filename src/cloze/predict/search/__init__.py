"""Semantic search: documents -> passages -> vectors and postings on disk -> ranked passages."""
