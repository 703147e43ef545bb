"""Commands about measurements, fitted models and tuning."""
