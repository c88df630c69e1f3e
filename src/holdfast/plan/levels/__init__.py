"""What is done with state in an epoch, without Spark: chunks packed, levels called, buckets stored."""
