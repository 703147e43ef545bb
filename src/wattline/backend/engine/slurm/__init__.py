"""Engine that lets Slurm run the attempts, on any number of nodes."""
