"""Token tagging: CoNLL columns, windows and entity metrics."""
