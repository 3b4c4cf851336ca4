"""Running experiments: the rounds, the run folder, checkpoints and records."""
