"""Optimiser of ANDREAS: one decision for all jobs at the least cost of energy and tardiness."""

METHODS = ("exact", "relink", "search", "randomised", "greedy")
OBJECTIVES = ("rolling", "to_the_end")
