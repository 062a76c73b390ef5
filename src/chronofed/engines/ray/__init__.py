"""The engine of several machines, on Ray. Only :mod:`chronofed.engines.ray.connect` imports Ray."""
