from holdfast.connectors.mysql.lookup_table import mysql as mysql
from holdfast.connectors.postgres.lookup_table import postgres as postgres
from holdfast.connectors.sqlite.lookup_table import sqlite as sqlite
from holdfast.operators.lookup.tables import parquet as parquet
