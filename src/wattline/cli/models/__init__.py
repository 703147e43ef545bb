"""Commands about models, measurements and this machine."""
