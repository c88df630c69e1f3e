"""What is read of PostgreSQL: tables that streams look up in."""
