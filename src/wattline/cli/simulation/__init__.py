"""Commands that simulate, compare, replay and optimise."""
