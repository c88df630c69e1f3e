"""Sources of whole entries that are read up to a time, and owe the rest."""
