"""The training loop and what is measured of it."""
