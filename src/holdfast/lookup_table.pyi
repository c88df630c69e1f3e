from holdfast.operators.lookup.tables import parquet as parquet
from holdfast.sinks.postgres.readers.lookup_table import postgres as postgres
from holdfast.sinks.sqlite.lookup_table import sqlite as sqlite
