"""Ways to run a cohort: the engine never changes the result."""
