"""A PostgreSQL table compared with what it should hold, in the server, and repaired (design/0024)."""
