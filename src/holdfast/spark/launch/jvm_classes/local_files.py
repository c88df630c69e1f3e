"""Local files of the JVM without a process for each: a class of ours on the class path of the JVM of a local master.

Spark writes two small files for each epoch, its offset log and its commit log.  Hadoop sets the permissions of a new
file by starting ``chmod``, and creates two: the file and its checksums.  That was two thirds of the time that an almost
empty epoch took.  ``LocalFiles.java`` says what is done instead; the files are the same, byte for byte.

The class is there in a JVM whose command line is composed here (:mod:`holdfast.spark.launch.jvm_options`); any other
one, a user's own session and the executors of a cluster have Hadoop's.
"""

from __future__ import annotations

from pathlib import Path

JAR = Path(__file__).with_name("local_files.jar")
"""Made of ``LocalFiles.java``, which it contains, by ``python -m tools.local_files``."""

CLASS = "holdfast.LocalFiles"
SETTING = "spark.hadoop.fs.file.impl"
