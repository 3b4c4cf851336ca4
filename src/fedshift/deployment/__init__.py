"""A federation of institutions: the coordinator and each site on a separate machine, connected by Flower."""
