"""Speed and power of a GPU under a power cap or a locked clock."""
