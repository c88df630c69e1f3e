"""Servers of this machine for tests and development: a Kafka broker, a PostgreSQL; thrown away when they stop."""
