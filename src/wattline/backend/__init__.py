"""Backends, which run leases and keep the time: the simulator, replay of a run log, and real engines."""
