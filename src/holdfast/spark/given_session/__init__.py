"""Runs in a session that a user has made: it is left as it was."""
