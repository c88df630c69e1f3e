"""``lookup``: columns of a table for the rows of a stream."""
