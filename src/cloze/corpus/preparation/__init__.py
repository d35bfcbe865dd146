"""``cloze prepare``: convert text files to memory-mapped shards, in parallel and resumably."""
