"""A round: what the coordinator does, what a site does, what is scored, and a simulation of all of them."""
