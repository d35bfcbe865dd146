"""Ids -> training examples: documents, shards, sentence pairs, masking, batches."""
