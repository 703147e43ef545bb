"""Operators' rules: partitions, QOS, reservations, dependencies and topology, as Slurm means them."""
