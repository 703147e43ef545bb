"""State of the service in SQLite: events, and the tables derived from them."""
