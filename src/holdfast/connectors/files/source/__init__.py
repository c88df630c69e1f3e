"""Files as a source: found, logged in blocks, and read again exactly."""
