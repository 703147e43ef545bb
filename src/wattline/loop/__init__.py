"""The one loop: state transitions, reconciliation, and the run log."""
