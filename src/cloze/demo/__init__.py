"""``cloze demo``: from raw text to a fine-tuned model on bundled public-domain books, with a page of results."""
