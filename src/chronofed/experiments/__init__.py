"""Experiments: a specification in TOML, and the program that carries it out."""
