"""Jobs that people submit, and the service that runs them."""
