"""Commands that start the service and talk to it."""
