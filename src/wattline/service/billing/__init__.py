"""Bills of teams: energy, money, CO₂, and savings."""
