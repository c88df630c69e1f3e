"""Cameras: what they send is journalled, and read from the journal exactly once."""
