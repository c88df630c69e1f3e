"""Files in directories and object stores."""
