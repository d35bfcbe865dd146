"""Training: the loop and what every training shares; pre-training, fine-tuning and distillation."""
