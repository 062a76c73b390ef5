"""Tests; helpers that they share are in tests.helpers."""
