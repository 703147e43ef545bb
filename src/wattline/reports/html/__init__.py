"""HTML pages of reports."""
