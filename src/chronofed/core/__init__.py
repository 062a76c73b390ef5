"""Types, settings, seeds, errors and file formats that every room shares."""
