"""What the Python processes of a Spark session do first: look for PySpark where it is installed, not in a zip.

Spark puts ``pyspark.zip`` first on the path of every Python process it starts.  What comes out of a zip is compiled
anew by each process: 0.9 s of CPU for what takes 0.25 s from the installed package, which Python has compiled once.
A start of a pipeline needs about eight such processes before its first row is read.

Python itself imports a module of this name at its start, from the first place on its path; the session puts this
directory there (:mod:`holdfast.spark.launch.session`).  The ``sitecustomize`` that would have been imported without it
is imported after it.  Where a zip belongs to another Spark than the installed package, it stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def without_own_zips(path: Sequence[str]) -> list[str]:
    """Return a module search path without the zips that only repeat an installed package.

    Parameters
    ----------
    path : sequence of str
        As ``sys.path``.

    Returns
    -------
    list of str
        The same without ``<package>/python/lib/*.zip``, where ``<package>`` is the PySpark that the rest of the path
        finds, and the rest finds Py4J too.
    """
    rest = [entry for entry in path if not entry.endswith(".zip")]
    pyspark, py4j = PathFinder.find_spec("pyspark", rest), PathFinder.find_spec("py4j", rest)
    if pyspark is None or pyspark.origin is None or py4j is None:
        return list(path)
    own = os.path.realpath(os.path.join(os.path.dirname(pyspark.origin), "python", "lib"))
    return [entry for entry in path if not (entry.endswith(".zip") and os.path.realpath(os.path.dirname(entry)) == own)]


def _import_the_next() -> None:
    here = os.path.realpath(os.path.dirname(__file__))
    rest = [entry for entry in sys.path if os.path.realpath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = without_own_zips(sys.path)
    _import_the_next()
