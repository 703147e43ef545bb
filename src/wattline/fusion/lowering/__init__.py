"""Lowering of a member's operators to batched operators: rules, forward pass and fallback."""
