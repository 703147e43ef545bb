"""One decision for all jobs at once: energy and tardiness on nodes of several kinds, in money (ANDREAS)."""

METHODS = ("exact", "relink", "search", "randomised", "greedy")
OBJECTIVES = ("rolling", "to_the_end")
