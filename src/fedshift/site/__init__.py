"""What a site does with an order: its own samples, its own state, its own store."""
