"""MySQL and MariaDB: a sink, a look-up, a lease."""
