"""Fine-tuning on tasks, with hyperparameter search, augmentation and domain adaptation."""
