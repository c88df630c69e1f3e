"""Rows that make an epoch fail: how they are found, kept, left out and sent again."""
