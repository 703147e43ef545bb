"""Pages of the service for browsers: rendered here, made live by small scripts."""
