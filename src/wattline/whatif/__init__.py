"""What other policies would have done with the jobs that a cluster has run; see docs/whatif.md."""
