"""The files sink: a directory of Parquet or JSON lines with a commit log."""
