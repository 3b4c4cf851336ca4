"""What an experiment is: documented settings, catalogues of names, one run's description, and grids of them."""
