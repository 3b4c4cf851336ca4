"""Data sets of the catalogue and the user's own, as tensors with labels and domains."""
