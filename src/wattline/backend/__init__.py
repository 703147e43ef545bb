"""What runs leases and keeps the time."""
