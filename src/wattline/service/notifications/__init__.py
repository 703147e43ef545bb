"""Webhooks: signed messages on the end of jobs and the exhaustion of budgets."""
