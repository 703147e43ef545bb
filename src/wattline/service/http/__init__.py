"""The REST API of the service."""
