"""The simulator: a backend with a virtual clock."""
