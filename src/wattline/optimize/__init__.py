"""One decision for all jobs at once: energy and tardiness on nodes of several kinds, in money (ANDREAS)."""
