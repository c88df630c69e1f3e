"""Synchronisation: rows of several streams in sets, by timestamp and key."""
