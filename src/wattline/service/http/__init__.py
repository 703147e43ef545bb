"""REST API of the service."""
