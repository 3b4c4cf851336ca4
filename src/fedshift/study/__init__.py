"""Studies: grids of runs that are searched, ranked, or put beside the numbers of a paper."""
