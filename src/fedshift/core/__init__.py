"""The contract every method, engine and deployment stands on."""
