"""``cloze demo``: the whole way on bundled public-domain text, ending in a page to look at."""
