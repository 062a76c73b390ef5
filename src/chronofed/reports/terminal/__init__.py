"""Tables and small curves in the terminal."""
