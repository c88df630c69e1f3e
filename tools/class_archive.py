"""The JVMs of the tests: with the archive of Spark's classes, which is made once, below ``build/``, and one compiler.

The tests start well over a hundred JVMs, each for a few seconds.  The archive is the product's own
(:mod:`holdfast.spark.launch.class_archive`); without it the tests do the same, only later.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from holdfast.spark.launch import class_archive
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm_options import ONE_COLLECTOR, ONE_COMPILER

CACHE = Path(__file__).resolve().parents[1] / "build"


def options() -> str:
    """Return the options for the JVMs of tests, after making the archive if there is none."""
    require_java()
    environment = {**os.environ, "XDG_CACHE_HOME": str(CACHE)}
    path = class_archive.path_for(environment)
    if path is not None and not path.exists():
        print("making an archive of Spark's classes, once: build/", flush=True)
        if not class_archive.make(path):
            print(f"no archive was made; the tests take longer: {path.with_suffix('.failed')} says why", flush=True)
    return shlex.join([ONE_COMPILER, ONE_COLLECTOR, *class_archive.options(environment)])
