"""Flink's SQL by PyFlink: statements from standard input, run in a session cluster within this process.

As written in https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/table/sql/gettingstarted/ ("deploy Flink
standalone", submit to it): the cluster has started before the first job, so no job's time has its start in it.

The first line is an object with ``settings`` and ``slots``; each further line a list of statements.  After all of them
have run to their end there is a line ``DONE <seconds>``, or ``FAILED <why>``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment


def start_cluster(settings: dict[str, str], slots: int) -> Any:
    """Start a cluster in this process's JVM, and return it."""
    flink = get_gateway().jvm.org.apache.flink
    of_cluster = Configuration()
    for name, value in {**settings, "rest.port": "0"}.items():
        of_cluster.set_string(name, value)
    builder = flink.runtime.minicluster.MiniClusterConfiguration.Builder()
    builder = builder.setConfiguration(of_cluster._j_configuration)
    cluster = flink.runtime.minicluster.MiniCluster(
        builder.setNumTaskManagers(1).setNumSlotsPerTaskManager(slots).build()
    )
    cluster.start()
    return cluster


def run(settings: dict[str, str], statements: Sequence[str]) -> float:
    """Run statements in an environment of their own, each to its end; return the seconds of the last one."""
    of_job = Configuration()
    for name, value in settings.items():
        of_job.set_string(name, value)
    environment = TableEnvironment.create(EnvironmentSettings.new_instance().with_configuration(of_job).build())
    seconds = 0.0
    for statement in statements:
        started = time.perf_counter()
        environment.execute_sql(statement).wait()
        seconds = time.perf_counter() - started
    return seconds


def _causes(text: str) -> str:
    """Return the first line of an error of the JVM, and what caused it."""
    lines = text.splitlines()
    return "\n".join([*lines[:2], *(line for line in lines if line.startswith("Caused by"))])[-3000:]


def main() -> None:
    """Run what standard input says until it ends."""
    first = json.loads(sys.stdin.readline())
    settings = first["settings"]
    address = start_cluster(settings, first["slots"]).getRestAddress().get()
    settings = {
        **settings,
        "execution.target": "remote",
        "rest.address": address.getHost(),
        "rest.port": str(address.getPort()),
        "parallelism.default": str(first["slots"]),
    }
    for line in sys.stdin:
        try:
            said = f"DONE {run(settings, json.loads(line))}"
        except Exception as error:  # of the JVM: the caller says which query it was
            said = f"FAILED {json.dumps(_causes(str(error)))}"
        print(said, flush=True)


if __name__ == "__main__":
    main()
