"""Arrays inside other frameworks; each module needs its framework, and none is imported by the core."""
