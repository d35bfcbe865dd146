"""The loop and what it trains: pre-training, fine-tuning."""
