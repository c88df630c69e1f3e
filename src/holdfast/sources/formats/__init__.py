"""What lies in files: JSON lines, CSV and Parquet, parsed into declared types, bad rows told from good ones."""
