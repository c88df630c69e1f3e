"""A store of messages that grows at its end, and is read from a time on."""
