"""What contents that are read as Arrow columns share (design/0024)."""
