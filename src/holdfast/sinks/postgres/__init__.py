"""The PostgreSQL sink."""
