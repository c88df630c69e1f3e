"""A directory of files compared with what it should hold, row by row, and repaired (design/0024)."""
