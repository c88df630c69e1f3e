"""Control rows of a PostgreSQL sink: how rows with commands are staged, and how these are carried out."""
