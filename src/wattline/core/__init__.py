"""Data types that every layer shares: jobs, nodes, leases, plans, events and actions."""
