"""Text correction with a masked language model."""
