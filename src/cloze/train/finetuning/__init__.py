"""Fine-tuning on tasks, with search, augmentation and domain adaptation."""
