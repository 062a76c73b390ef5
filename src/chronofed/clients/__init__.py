"""Clients: messages, local training, and the state that clients keep between rounds."""
