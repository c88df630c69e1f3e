"""Was every row written once, to PostgreSQL or Kafka?  Also a command, which looks again at what the last demo left.

``python -m demo.verify demo/out [--postgres DSN]``
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from demo.watch import KafkaRecords
from holdfast.demo.verify import COLUMNS, Row, normal_rows, verify


def held_in_postgres(dsn: str, table: str) -> list[Row]:
    """Read a table from PostgreSQL."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute("SET TIME ZONE 'UTC'")  # NB not by options=, which would replace the DSN's search path
        rows = connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM {table}".encode())
        return normal_rows(table, rows)


def held_in_kafka(bootstrap: str, topic: str, keyed: bool = False) -> list[Row]:
    """Read a topic as any consumer with ``read_committed`` does; of each key the last record, where it has keys."""
    records = list(KafkaRecords(bootstrap, topic).new(5.0))
    values = [value for _, value in (dict(records).items() if keyed else records)]
    rows = [json.loads(value) for value in values if value is not None]
    return normal_rows(topic, ([row.get(name) for name in COLUMNS[topic]] for row in rows))


def main() -> int:
    """Verify what a demo left behind, and say so."""
    parser = argparse.ArgumentParser(prog="python -m demo.verify", description=__doc__)
    parser.add_argument("work", type=Path, nargs="?", default=Path(__file__).parent / "out")
    parser.add_argument("--postgres", metavar="DSN")
    options = parser.parse_args()
    dsn = options.postgres
    verdicts = verify(options.work, (lambda table: held_in_postgres(dsn, table)) if dsn else None)
    for verdict in verdicts:
        print(
            f"{verdict.stream}: expected={verdict.expected} held={verdict.held} "
            f"duplicates={verdict.duplicates} lost={verdict.lost}"
        )
    return 0 if all(verdict.is_exact for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
