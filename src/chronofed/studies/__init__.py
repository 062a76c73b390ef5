"""Studies: many runs, as tables, sweeps and benchmarks."""
