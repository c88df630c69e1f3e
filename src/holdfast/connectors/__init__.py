"""Systems that are read and written, each in one room, and what they share."""
