"""One market: every resource has a price, and every job picks its best configuration at these prices."""
