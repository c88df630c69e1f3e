"""What a sink should hold compared with what it holds (design/0024)."""
