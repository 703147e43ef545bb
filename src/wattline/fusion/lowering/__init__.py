"""From members' operators to batched operators: rules, forward pass, and fallback."""
