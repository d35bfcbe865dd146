"""Multiple choice: which of several options fits a prompt (SWAG, ARC, own tables)."""
