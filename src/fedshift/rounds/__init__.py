"""Rounds: the coordinator, sites, evaluation, and their simulation."""
