"""One training step of a whole array: modes, tracing, compilation."""
