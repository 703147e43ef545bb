"""Commands that simulate, compare and replay."""
