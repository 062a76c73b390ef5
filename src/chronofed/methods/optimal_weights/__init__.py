"""Optimal round weights as plain functions of numbers: they need numpy only, and no torch."""
