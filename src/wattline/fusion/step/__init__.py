"""One training step of an array: execution modes, tracing and compilation."""
