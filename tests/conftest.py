"""What every test shares: the project's root on the import path, and the fixtures that start servers."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.servers import (  # noqa: E402
    mortal_postgres,
    postgres_plain,
    postgres_prepared,
    postgres_server_plain,
    postgres_server_prepared,
)

__all__ = [
    "mortal_postgres",
    "postgres_plain",
    "postgres_prepared",
    "postgres_server_plain",
    "postgres_server_prepared",
]
