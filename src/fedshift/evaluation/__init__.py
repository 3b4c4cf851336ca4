"""Scoring models, and what a record says of it."""
