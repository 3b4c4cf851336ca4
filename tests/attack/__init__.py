"""The attacks: kills, failures of the machine, damaged files and bad input. ``--attack large`` runs all."""
