"""The service's state in SQLite: events and the job table projected from them."""
