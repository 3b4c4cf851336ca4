"""Client2Vec, its client indices and the encoders they read."""
