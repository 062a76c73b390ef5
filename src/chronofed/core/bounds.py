"""The largest numbers that settings and options may have; every number has two finite bounds."""

LARGEST = 1e32
"""Beyond it, results overflow: float32 ends at 3e38."""
LARGEST_COUNT = 10**12
LARGEST_INTEGER = 10**18
"""Row numbers and seeds must fit into 64 bits."""
LONGEST_S = 1e9
"""Operating systems refuse to wait for longer than some centuries."""
MOST_WORKERS = 1024
