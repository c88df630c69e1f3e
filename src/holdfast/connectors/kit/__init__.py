"""What sinks of several systems share."""
