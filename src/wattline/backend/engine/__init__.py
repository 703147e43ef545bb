"""What every real execution engine shares: job records, the job table, exit policy, energy."""
