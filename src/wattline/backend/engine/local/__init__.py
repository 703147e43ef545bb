"""The engine that runs jobs as processes of this machine."""
