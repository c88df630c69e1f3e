"""Arrow types as users write them: schemas, DDL, quantities with units, and the cast to a declared type."""
