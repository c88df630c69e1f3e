"""What sinks on a file system do beside their epochs: a thread with rounds, and which small files it joins."""
