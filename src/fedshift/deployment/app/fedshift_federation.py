"""The names that Flower asks for. Nothing imports this file: each member runs the fedshift that it has installed."""

server = client = None
