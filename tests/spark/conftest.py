"""One Spark session for the test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.session import create_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = create_session("local[2]", "2g")
    yield session
    session.stop()
