"""Metrics of the service for Prometheus and Grafana, and job files for DCGM."""
