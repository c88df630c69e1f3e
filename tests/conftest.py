"""What every test shares: the root on the import path, a Spark session, and the fixtures that start servers."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from holdfast.spark.spark_versions import running  # noqa: E402
from holdfast.testing.servers.kafka import default_jars  # noqa: E402
from tests.everyday import examples, is_left_out  # noqa: E402
from tests.kafka_servers import functions, kafka_of_session, mortal_kafka, new_topic, three_kafkas  # noqa: E402
from tests.modes import umask  # noqa: E402
from tests.mysql_servers import mortal_mysql, mysql_of_session, mysql_url  # noqa: E402
from tests.other_clouds import azure_store, google_store  # noqa: E402
from tests.redis_servers import mortal_redis, redis_of_session, redis_url  # noqa: E402
from tests.s3_proxy import proxy  # noqa: E402
from tests.s3_server import s3_bucket, s3_of_session  # noqa: E402
from tests.servers import (  # noqa: E402
    mortal_postgres,
    postgres_plain,
    postgres_prepared,
    postgres_server_plain,
    postgres_server_prepared,
)

# Thousands of syncs to a disk take minutes, and tests cut no power.  The memory of small containers is too small.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Kafka's jars are those of the user's cache directory, which every tree shares.
os.environ.setdefault("HOLDFAST_KAFKA", str(default_jars()))

# The archive of classes that tests use is made in this tree, and none in the user's cache directory.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / "build")


# A shell lets what it starts in the background ignore SIGINT, and so would each process here: tests stop runs by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Overlook the sockets to its own JVM that PySpark before 4.2 leaves to the garbage collector."""
    if not running().asks_from:
        left = "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
        config.addinivalue_line("filterwarnings", left)


# No example has a time limit: a machine that is busy is no defect of the code.  Each run tries others, also where
# Hypothesis sees CI in the environment: tools/run_tests.py gives a seed, and reports it.
settings.register_profile(
    "holdfast",
    max_examples=examples(100),
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("holdfast")

__all__ = [
    "azure_store",
    "functions",
    "google_store",
    "kafka_of_session",
    "mortal_kafka",
    "mortal_mysql",
    "mortal_postgres",
    "mortal_redis",
    "mysql_of_session",
    "mysql_url",
    "new_topic",
    "postgres_plain",
    "postgres_prepared",
    "postgres_server_plain",
    "postgres_server_prepared",
    "redis_of_session",
    "redis_url",
    "proxy",
    "s3_bucket",
    "s3_of_session",
    "three_kafkas",
    "umask",
]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of which every test would be deselected, by their markers: nothing in them is imported."""
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest: what is parsed and rewritten are millions of objects, and none is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the garbage collector's walks: it lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for the test process.  A task that fails is tried once more and not three times."""
    from holdfast.spark.launch import jvm  # slow to import, and most test processes do without
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import create_session

    jvm.begin(jvm.options_for("2g", rows=RowsInJvm.ALL, has_archive=False))  # as the one of a run is begun
    session = create_session("local[2, 2]", "2g")
    yield session
    session.stop()


@pytest.fixture
def new_path(tmp_path: Path) -> Callable[[], Path]:
    """Return what gives a path at which there is nothing yet, another one with each call."""
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))
