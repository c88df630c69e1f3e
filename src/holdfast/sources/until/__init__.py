"""Runs that end at a time: sources are read up to it, and leave the rest for a later run."""
