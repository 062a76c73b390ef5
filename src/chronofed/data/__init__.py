"""Data sets: named images, tables of rows, and files that grow on a client."""
