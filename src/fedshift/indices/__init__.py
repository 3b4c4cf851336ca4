"""Ways to describe every client by a vector before training (Client2Vec and what it is compared with)."""
