"""A coordinator with all its sites in one process."""
