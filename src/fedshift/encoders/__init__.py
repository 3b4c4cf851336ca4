"""Pairs of encoders that put samples and their labels' descriptions into one space."""
