"""What the coordinator does: selects, sends, checks, merges, counts."""
