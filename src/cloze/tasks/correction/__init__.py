"""Text correction: files, settings and metrics."""
