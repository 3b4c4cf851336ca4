"""Studies: grids of runs that are searched, ranked, or compared with the numbers of a paper."""
