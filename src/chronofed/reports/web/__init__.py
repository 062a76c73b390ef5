"""The HTML report and the live page."""
