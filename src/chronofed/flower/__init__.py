"""Real clients on other machines, through Flower.

Only :mod:`~chronofed.flower.server`, :mod:`~chronofed.flower.client` and :mod:`~chronofed.flower.grid` import
Flower; all that decides what happens is in modules that do not.
"""
