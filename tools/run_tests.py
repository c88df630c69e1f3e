"""Runs the tests in groups, one pytest process each, and closes with their sum in pytest's own words.

A process of its own per group: one Spark session per process, and a group that dies takes no other with it.  The groups
divide the tests without rest: every combination of markers belongs to exactly one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

GROUPS = {
    "fast": "not spark and not postgres and not crash and not slow",
    "slow": "slow and not spark and not postgres and not crash",
    "postgres": "postgres and not spark and not crash",
    "spark": "spark and not crash",
    "crash": "crash",
}
"""Name -> pytest marker expression."""

NO_TESTS = 5  # pytest's exit code for an empty selection
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?)")


@dataclass(frozen=True)
class Result:
    """What one group's pytest said."""

    group: str
    exit_code: int
    closing_line: str

    @property
    def is_good(self) -> bool:
        """Whether every test of the group passed; an empty group is good, apart from the fast one."""
        return self.exit_code == 0 or (self.exit_code == NO_TESTS and self.group != "fast")

    @property
    def counts(self) -> Counter[str]:
        """Outcome -> tests."""
        return Counter({outcome.rstrip("s"): int(number) for number, outcome in _COUNT.findall(self.closing_line)})


def main(groups: Sequence[str]) -> int:
    """Run the groups, print their closing lines and the sum; return 1 when any failed."""
    unknown = [group for group in groups if group not in GROUPS]
    if unknown or not groups:
        print(f"run_tests: groups are {', '.join(GROUPS)}; got {' '.join(groups) or 'none'}", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = [run(group) for group in groups]
    print()
    for result in results:
        print(f"{result.group:>9}: {result.closing_line.strip('= ')}")
    print(closing_line(results, time.monotonic() - started), flush=True)
    return 0 if all(result.is_good for result in results) else 1


def run(group: str) -> Result:
    """Run one group, its output going to ours line by line."""
    print(f"\n--- tests: {group} ({GROUPS[group]})", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", GROUPS[group]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("=") and line.rstrip().endswith("="):
            last = line.rstrip()
    exit_code = process.wait()
    if not re.search(r" in [\d.]+s", last):
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
    words = [
        f"{total[outcome]} {outcome}"
        for outcome in ("failed", "passed", "skipped", "xfailed", "error")
        if total[outcome]
    ]
    return f"======== {', '.join(words) or 'no tests ran'} in {seconds:.2f}s ========"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
