"""The scheduling loop: state transitions, reconciliation and the run log."""
