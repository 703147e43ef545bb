"""Studies of other policies on the jobs that a cluster has run; see docs/whatif.md."""
