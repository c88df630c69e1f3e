"""Main and replica on the command line: a run that keeps a lease, one that waits for it, and the promotion."""
