"""What is decided about segments, without I/O: when they are sealed, and dropped."""
