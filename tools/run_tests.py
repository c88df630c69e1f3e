"""Runs the tests in groups, one pytest process each, and closes with their sum in pytest's own words.

A process of its own per group: a group that dies takes no other with it.  The groups
divide the tests without rest: every combination of markers belongs to exactly one (``kills`` apart).

``unit+fast`` runs two groups side by side, for as long as neither needs more than one core.  What the second prints
appears when the first has ended.  ``postgres`` is shared by two workers, each with servers of its own; ``spark`` by
two, each with one Spark session; ``crash`` by three, with a session for each life of every process that is killed: many
of its tests wait, for the steps of a slow sink or for a database that is away.  All JVMs of tests start from an archive
of classes (:mod:`tools.class_archive`).

What was tried is written into a report, again after each group: cases and seconds of each, and the seeds that bring the
same again.  ``HOLDFAST_FIRST_SEED`` chooses those of the simulation, of kills and of the examples of properties;
without it only the examples differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from holdfast.testing.servers import kafka as kafka_server
from tools import class_archive

KILLING = (
    "tests/crash/test_jvm_killed.py",
    "tests/crash/test_kafka_topic_kill.py",
    "tests/crash/test_kafka_cluster.py",
)
FAST = "not spark and not postgres and not crash and not slow and not nightly"
ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
REPORT = ROOT / "build" / "tests.json"
"""Where the report goes, if no other place is given."""

EXTENT = (
    "HOLDFAST_EXAMPLES",
    "HOLDFAST_FIRST_SEED",
    "HOLDFAST_JVM_KILLS",
    "HOLDFAST_KAFKA_KILLS",
    "HOLDFAST_PAIRS",
    "HOLDFAST_PAIRS_MINUTES",
    "HOLDFAST_SEED",
    "HOLDFAST_SEEDS",
)
"""Variables that say how much is tried, and with which seeds.  Others may hold a password, and are not reported."""

BESIDE_UNIT = tuple(
    f"tests/{room.name}"
    for room in sorted(TESTS.iterdir())
    if room.name != "unit" and (room.match("test_*.py") or any(room.rglob("test_*.py")))
)
"""Where other tests than those of units are."""

OF_FAST = ("tests/unit/flow", "tests/unit/operators")
"""Unit tests that are run with the rest of the quick ones: the two groups run side by side, and end together so."""

GROUPS = {
    "unit": ("-m", FAST, "tests/unit", *(f"--ignore={room}" for room in OF_FAST)),
    "fast": ("-m", FAST, *BESIDE_UNIT, *OF_FAST),
    "slow": (
        "-m",
        "slow and not spark and not postgres and not crash and not nightly",
        "-n",
        "2",
        "--dist",
        "worksteal",
    ),
    "postgres": ("-m", "postgres and not spark and not crash and not nightly", "-n", "2", "--dist", "loadfile"),
    "spark": ("-m", "spark and not crash and not nightly", "-n", "2", "--dist", "loadfile"),
    "crash": ("-m", "crash and not nightly", "--durations=15", "-n", "3", "--dist", "worksteal"),
    "nightly": ("-m", "nightly", "-n", "2", "--dist", "worksteal"),
    "kills": ("-n", "2", "--dist", "worksteal", *KILLING),
}
"""Name -> arguments for pytest.  The last one repeats a part of ``crash``, with as many kills as are asked for."""

WITH_JVM = {"spark", "crash", "nightly", "kills"}

NO_TESTS = 5  # pytest's exit code for an empty selection
OUTCOMES = ("failed", "passed", "skipped", "xfailed", "error")
"""What can become of a test, in the order of pytest's closing line."""

_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")
_SECONDS = re.compile(r" in ([\d.]+)s")


@dataclass(frozen=True)
class Result:
    """What one group's pytest said."""

    group: str
    exit_code: int
    closing_line: str

    @property
    def is_good(self) -> bool:
        """Whether every test of the group passed; an empty group is good, apart from those that need nothing."""
        return self.exit_code == 0 or (self.exit_code == NO_TESTS and self.group not in ("unit", "fast"))

    @property
    def counts(self) -> Counter[str]:
        """Outcome -> tests."""
        return Counter({outcome.rstrip("s"): int(number) for number, outcome in _COUNT.findall(self.closing_line)})

    @property
    def seconds(self) -> float | None:
        """How long its tests took; None when pytest has not said so."""
        found = _SECONDS.search(self.closing_line)
        return float(found[1]) if found else None


def main(arguments: Sequence[str]) -> int:
    """Run the groups, report them, print their closing lines and the sum; return 1 when any failed."""
    parser = argparse.ArgumentParser(prog="run_tests", description="Runs the tests in groups.")
    parser.add_argument("groups", nargs="*", help="one after the other; those joined by + side by side")
    parser.add_argument("--report", type=Path, default=REPORT, help="where the report goes (%(default)s)")
    parser.add_argument("--files", type=shlex.split, default=[], help="only the tests of these, a list in one word")
    options = parser.parse_args(arguments)
    rows = [row.split("+") for row in options.groups]
    unknown = [group for row in rows for group in row if group not in GROUPS]
    if unknown or not rows:
        print(f"run_tests: groups are {', '.join(GROUPS)}; got {' '.join(options.groups) or 'none'}", file=sys.stderr)
        return 2
    started = time.monotonic()
    seed = int(os.environ.get("HOLDFAST_FIRST_SEED") or random.SystemRandom().randrange(1 << 32))
    around = circumstances(seed, os.environ) | {"files": options.files}
    results: list[Result] = []
    for row in rows:
        results += run(row, seed, options.files)
        write_report(options.report, around | outcome(results, time.monotonic() - started))
    print()
    for result in results:
        print(f"{result.group:>9}: {result.closing_line.strip('= ')}")
    print(closing_line(results, time.monotonic() - started), flush=True)
    return 0 if all(result.is_good for result in results) else 1


def circumstances(seed: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what is tried, how much of it, and by what: known before the first test."""
    return {
        "begin": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "spark": metadata.version("pyspark"),
        "machine": platform.platform(),
        "seed_of_examples": seed,
        "extent": {name: environment[name] for name in EXTENT if environment.get(name)},
    }


def outcome(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return what became of the tests, all together and by group."""
    return {
        "is_good": all(result.is_good for result in results),
        "cases": sum(cases(result) for result in results),
        "seconds": round(seconds, 1),
        "groups": {
            result.group: {
                "cases": cases(result),
                "outcomes": {name: result.counts[name] for name in OUTCOMES if result.counts[name]},
                "seconds": result.seconds,
                "closing_line": result.closing_line.strip("= "),
            }
            for result in results
        },
    }


def cases(result: Result) -> int:
    """Return how many tests of a group were run, or skipped.

    Examples
    --------
    >>> cases(Result("fast", 1, "== 1 failed, 3 passed, 9 deselected, 1 warning in 1.00s =="))
    4
    """
    return sum(result.counts[outcome] for outcome in OUTCOMES)


def commit() -> str | None:
    """Return the commit of the tree, with a plus sign where files differ from it; None where there is no git."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return found + ("+" if changed else "")


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Write the report as a whole: who reads it while tests run sees that of the last group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.write_text(json.dumps(content, indent=2) + "\n")
    half.replace(path)


def run(groups: Sequence[str], seed: int, files: Sequence[str] = ()) -> list[Result]:
    """Run groups side by side, the output of one after the other going to ours line by line."""
    first, *others = groups
    with ExitStack() as stack:
        # NB files and not pipes: nobody reads what the others print while the first one runs.
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        process = start(first, seed, subprocess.PIPE, files)
        beside = [start(group, seed, output, files) for group, output in zip(others, outputs, strict=True)]
        assert process.stdout is not None
        results = [finish(first, process, process.stdout)]
        for group, other, output in zip(others, beside, outputs, strict=True):
            other.wait()
            output.seek(0)
            results.append(finish(group, other, output))
        return results


def start(group: str, seed: int, output: int | IO[bytes], files: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start one group's pytest, with the seed of what Hypothesis tries, on some files or on all that it has."""
    # The archive of classes that the tests use is made in this tree, and none in the user's cache directory.
    environment = {
        **os.environ,
        "HOLDFAST_KAFKA": str(kafka_server.default_jars()),
        "XDG_CACHE_HOME": str(class_archive.CACHE),
    }
    if group in WITH_JVM:
        environment.setdefault("SPARK_SUBMIT_OPTS", class_archive.options())
    command = [sys.executable, "-m", "pytest", *GROUPS[group], *files, f"--hypothesis-seed={seed}"]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def finish(group: str, process: subprocess.Popen[bytes], output: Iterable[bytes]) -> Result:
    """Print what a group says until it has ended."""
    print(f"\n--- tests: {group} ({shlex.join(GROUPS[group])})", flush=True)
    last = ""
    for line in (raw.decode(errors="replace") for raw in output):
        print(line, end="", flush=True)
        if line.startswith("=") and line.rstrip().endswith("="):
            last = line.rstrip()
    exit_code = process.wait()
    if not _SECONDS.search(last):
        last = f"no closing line: pytest ended with exit code {exit_code}"
        exit_code = exit_code or 1
    return Result(group, exit_code, last)


def closing_line(results: Sequence[Result], seconds: float) -> str:
    """Return the sum over all groups, written as pytest closes.

    Examples
    --------
    >>> fast, crash = Result("fast", 0, "== 3 passed in 1.00s =="), Result("crash", 1, "== 1 failed in 2.00s ==")
    >>> closing_line([fast, crash], 3.5)
    '======== 1 failed, 3 passed in 3.50s ========'
    """
    total: Counter[str] = sum((result.counts for result in results), Counter())
    silent = sum(1 for result in results if not result.is_good and not result.counts)
    total["error"] += silent
    words = [f"{total[outcome]} {outcome}" for outcome in OUTCOMES if total[outcome]]
    return f"======== {', '.join(words) or 'no tests ran'} in {seconds:.2f}s ========"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
