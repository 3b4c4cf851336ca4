"""One page for each published method."""
