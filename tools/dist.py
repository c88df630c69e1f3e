"""Builds what is published: ``python -m tools.dist [DIRECTORY]``, which ``make dist`` calls (design/0050, section 2).

Two builds of one commit have the same bytes: all times are that of the commit, or ``SOURCE_DATE_EPOCH``.  The wheel is
made from the sdist, so what is published as source is what is published.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm_classes import local_files as committed
from tools import local_files, sbom

ROOT = Path(__file__).resolve().parents[1]
EPOCH = "SOURCE_DATE_EPOCH"


def main() -> int:
    """Build sdist, wheel and bill of materials; print their hashes."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "dist")
    directory: Path = parser.parse_args().directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    check_jar()
    built_at = int(os.environ.get(EPOCH) or commit_time())
    environment = {**os.environ, EPOCH: str(built_at)}
    made = [build("sdist", ROOT, directory, environment)]
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(made[0]) as archive:
            archive.extractall(place, filter="data")
        (source,) = Path(place).iterdir()
        made.append(build("wheel", source, directory, environment))
    version = made[0].name.removeprefix("holdfast-").removesuffix(".tar.gz")
    made.append(directory / f"holdfast-{version}.cdx.json")
    made[-1].write_text(sbom.bill(built_at), encoding="utf-8")
    for path in made:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    return 0


def check_jar() -> None:
    """Compile the jar, and stop if the committed one is another."""
    require_java()
    if local_files.jar_bytes() == committed.JAR.read_bytes():
        return
    version = local_files.compiler()
    message = f"dist: {committed.JAR.name} is not what javac {version} makes of {local_files.SOURCE.name}"
    if version.partition(".")[0] == local_files.RELEASE:
        sys.exit(f"{message}.\n  Do:  python -m tools.local_files, and commit it.")
    print(f"{message}; it was made by that of Java {local_files.RELEASE}, which is the one to compare with.")


def commit_time() -> str:
    """Return the Unix time of the last commit, in seconds."""
    return subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def build(target: str, source: Path, directory: Path, environment: dict[str, str]) -> Path:
    """Build with the build tools that are installed, which are locked; return the file."""
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=source,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (made,) = [path for path in directory.iterdir() if path.stat().st_mtime_ns != before.get(path)]
    return made


if __name__ == "__main__":
    sys.exit(main())
