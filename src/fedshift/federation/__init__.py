"""Who holds which samples: clients, environments, partitions and protocols."""
