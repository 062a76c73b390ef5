"""The batched engine: all clients of a round as a few programs."""
