"""Models that the processes of a host share: one process holds each, and answers all callers in mixed batches."""
