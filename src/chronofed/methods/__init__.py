"""Methods: backbone x memory x round weights."""
