"""Lower bounds of mean JCT and energy that hold for every policy."""
