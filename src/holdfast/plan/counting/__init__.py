"""Rows that are counted where they pass, and the equations that the counts must fulfil (design/0026)."""
