"""What sinks that write files share."""
