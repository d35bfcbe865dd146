"""Training: the loop, what all kinds of training share, pre-training, fine-tuning and distillation."""
