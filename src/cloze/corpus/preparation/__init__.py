"""cloze prepare: text files to memory-mapped shards, in parallel and resumable."""
