"""The app that Flower is given by name. No file imports this one: each member runs its installed fedshift."""

server = client = None
