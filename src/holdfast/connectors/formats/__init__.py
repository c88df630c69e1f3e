"""Formats of files: JSON lines, CSV and Parquet, parsed into declared types, bad rows separated from good ones."""
