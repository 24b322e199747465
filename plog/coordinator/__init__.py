"""Group and transaction coordinators: pure machines, and the shells that run them."""
