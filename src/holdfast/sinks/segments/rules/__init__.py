"""What is decided about segments, without I/O: when they are sealed, joined and dropped."""
