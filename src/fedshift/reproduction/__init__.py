"""The tables and curves of the five papers: what they need, carried out at a scale, beside the papers' numbers."""
