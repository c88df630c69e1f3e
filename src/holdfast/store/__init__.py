"""Small durable objects: put if absent, whole or absent, with checksums."""
