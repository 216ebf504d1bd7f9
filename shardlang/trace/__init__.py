"""Python functions to typed graphs to local programs."""
