"""Rows that make an epoch fail, found on Spark: trials, and probes for rows that end their process."""
