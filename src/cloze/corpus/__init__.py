"""From text files to pre-training batches: documents, vocabulary, shards of ids, sentence pairs, masking, batches."""
