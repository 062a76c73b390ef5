"""Models, and the objective that joins a model with data."""
