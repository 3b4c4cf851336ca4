"""One page for each data set of the catalogue, and the three layouts of a user's own."""
