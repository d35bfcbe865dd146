"""Attention -> what each head does: patterns with their nulls, maps of heads, heads taken away."""
