"""What the project's own commands share: set-up, Java, a PostgreSQL to try things on."""
