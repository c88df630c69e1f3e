"""Stand-ins that keep no rows: digests of all of them, or the rows of some buckets (design/0024)."""
