"""A trained model as files that work without fedshift, executed before they are handed out."""
