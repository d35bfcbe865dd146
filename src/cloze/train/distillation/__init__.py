"""Distillation of a fine-tuned teacher into a smaller student."""
