"""The service: accepts jobs, runs them on this machine, and answers over HTTP."""
