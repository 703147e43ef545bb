"""docs/market.md, on fewer jobs."""

REPLACE = {"count=200": "count=20"}
