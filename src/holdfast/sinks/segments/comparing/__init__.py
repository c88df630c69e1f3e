"""A directory of segments compared with what it should hold, row by row, and repaired (design/0024)."""
