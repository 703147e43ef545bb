"""Energy budgets, energy prices, and the time series that they follow."""
