"""Makes a release, all but the upload: ``python -m tools.release 0.2.0``, which ``make release`` calls (design/0050).

Each step asks what is there already, so a release that was interrupted, or whose tests failed, goes on when the command
is given again.  It writes one commit (version, change log), ``dist/``, ``site/`` and a tag, and publishes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BRANCH = "main"
PLACEHOLDER = "holdfast.example"
"""What stands in ``[project.urls]`` until there is an address."""
PAGE_LINES = 80
"""Release notes are one page."""
GROUPS = {"unit", "fast", "slow", "postgres", "spark", "crash"}
"""What ``make test`` runs: its report has to have each."""
Version = tuple[int, int, int]


class NotReady(Exception):
    """Why there is no release yet, and what to do."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(f"{what}\n  Do:  {do}")


@dataclass(frozen=True)
class Release:
    """One release of the clone at ``root``."""

    root: Path
    version: str
    url: str = ""

    @property
    def tag(self) -> str:
        """The name of its tag."""
        return f"v{self.version}"

    @property
    def notes(self) -> Path:
        """The page of release notes."""
        return self.root / f"docs/releases/{self.version}.md"

    def check(self) -> None:
        """Raise ``NotReady`` if something that people have to do is missing."""
        if (branch := self.git("branch", "--show-current")) != BRANCH:
            raise NotReady(f"the branch is {branch or 'none'}; releases are made on {BRANCH}.", f"git switch {BRANCH}")
        if changed := self.git("status", "--porcelain", "--untracked-files=no"):
            raise NotReady(f"there are changes that are not committed:\n{changed}", "commit them, or git stash.")
        if self.tag in self.git("tag", "--list").split():
            raise NotReady(
                f"there is a tag {self.tag} already.", "choose a higher version; a release is never replaced."
            )
        if parts(now := self.present_version()) > parts(self.version):
            raise NotReady(f"the version is {now}, which is above {self.version}.", "choose a higher one.")
        if not self.notes.exists():
            raise NotReady(f"there is no {self.notes.relative_to(self.root)}.", "write it: one page, for users.")
        if (lines := len(self.notes.read_text(encoding="utf-8").splitlines())) > PAGE_LINES:
            raise NotReady(
                f"{self.notes.name} has {lines} lines, more than {PAGE_LINES}.", "shorten it; link the rest."
            )
        minor = self.version.rpartition(".")[0]
        if f"\n## To {minor}\n" not in (self.root / "docs/upgrading.md").read_text(encoding="utf-8"):
            raise NotReady(
                f"docs/upgrading.md has no section 'To {minor}'.", "write what a user has to change, if anything."
            )
        if PLACEHOLDER in self.project_text() and not self.url:
            raise NotReady(
                f"[project.urls] name {PLACEHOLDER}, which is no address.",
                f"make release VERSION=... URL=https://the-address; URL=https://{PLACEHOLDER} writes it later.",
            )

    def commit(self) -> None:
        """Write version, addresses and change log, and commit them; do nothing where that has been done."""
        has_version = self.present_version() == self.version and self.fragments() == []
        text = self.project_text()
        if self.url and PLACEHOLDER not in self.url:
            text = text.replace(f"https://{PLACEHOLDER}", self.url.rstrip("/"))
            text = re.sub(r"(?m)^(\[project\.urls\])  #.*$", r"\1", text)
        text = re.sub(r'(?m)^version = ".*"$', f'version = "{self.version}"', text, count=1)
        if has_version and text == self.project_text():
            return
        (self.root / "pyproject.toml").write_text(text, encoding="utf-8")
        if not has_version:
            self._write_version()
        self.git("commit", "--quiet", "--all", "--message", f"Release {self.version}")

    def _write_version(self) -> None:
        module = self.root / "src/holdfast/__init__.py"
        said = re.sub(
            r'(?m)^__version__ = ".*"$', f'__version__ = "{self.version}"', module.read_text(encoding="utf-8")
        )
        module.write_text(said, encoding="utf-8")
        today = datetime.now(UTC).date().isoformat()
        command = ["towncrier", "build", "--yes", "--version", self.version, "--date", today]
        self.run(sys.executable, "-m", *command)

    def is_tested(self) -> bool:
        """Return whether the last report of the tests is of this commit, and good."""
        path = self.root / "build/tests.json"
        if not path.exists():
            return False
        report = json.loads(path.read_text(encoding="utf-8"))
        return bool(
            report.get("commit") == self.git("rev-parse", "HEAD")
            and report["is_good"]
            and set(report["groups"]) >= GROUPS
        )

    def tag_text(self, files: Sequence[Path]) -> str:
        """Return the text of the tag: the notes without markup of links, and the hash of each file."""
        notes = self.notes.read_text(encoding="utf-8")
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"(?m)^#+ ", "", notes)).strip()
        hashes = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(files)]
        return "\n".join([plain, "", "SHA-256:", *hashes, ""])

    def make_tag(self, files: Sequence[Path]) -> None:
        """Make the tag, here only."""
        text = self.root / "build/tag.txt"
        text.parent.mkdir(exist_ok=True)
        text.write_text(self.tag_text(files), encoding="utf-8")
        self.git("tag", "--annotate", self.tag, "--cleanup", "whitespace", "--file", str(text))

    def fragments(self) -> list[Path]:
        """Return the release notes that are not in the change log yet."""
        return [path for path in (self.root / "changes").glob("*.md") if path.name != "README.md"]

    def present_version(self) -> str:
        """Return the version that the project has now."""
        version: str = tomllib.loads(self.project_text())["project"]["version"]
        return version

    def project_text(self) -> str:
        """Return pyproject.toml."""
        return (self.root / "pyproject.toml").read_text(encoding="utf-8")

    def git(self, *arguments: str) -> str:
        """Return what git says."""
        done = subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def run(self, *command: str) -> None:
        """Run a command; a failure ends the release."""
        print(f"release: {' '.join(command)}", flush=True)
        if (code := subprocess.run(command, cwd=self.root, check=False).returncode) != 0:
            raise NotReady(
                f"'{' '.join(command)}' ended with exit code {code}.", "mend it, commit, and give the command again."
            )


def main() -> int:
    """Make a release, or say what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", help="as 0.2.0")
    parser.add_argument("--url", default="", help="the public address, for [project.urls] where it has none yet")
    parser.add_argument("--check", action="store_true", help="only say whether it can be made")
    arguments = parser.parse_args()
    try:
        parts(arguments.version)
        release = Release(ROOT, arguments.version, arguments.url)
        release.check()
        if arguments.check:
            print(f"release: {release.tag} can be made")
            return 0
        make(release)
    except NotReady as reason:
        sys.exit(f"release: {reason}")
    return 0


def parts(version: str) -> Version:
    """Return the numbers of a version.

    Examples
    --------
    >>> parts("0.10.2")
    (0, 10, 2)
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"{version!r} is no version.", "three numbers, as 0.2.0.")
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def make(release: Release) -> None:
    """Do what is to be done, in this order; what was done before is not done again."""
    release.commit()
    release.run("make", "setup")  # the installation knows its version
    if not release.is_tested():
        release.run("make", "test")
    dist = release.root / "dist"
    release.run("make", "dist")
    release.run("sh", "tools/with_java.sh", sys.executable, "-m", "pytest", "-q", "tests/crash/test_wheel.py")
    release.run("make", "docs")
    files = [path for path in dist.iterdir() if path.name.startswith(f"holdfast-{release.version}")]
    release.make_tag(files)
    print(
        f"release: {release.tag} is made here. What is left publishes it, and cannot be taken back:\n"
        f"  git push origin {BRANCH} {release.tag}\n"
        f"  .venv/bin/uv publish dist/holdfast-{release.version}*.whl dist/holdfast-{release.version}.tar.gz\n"
        f"  the files of dist/ and the text of the tag as the release's page; site/ where the documentation is"
    )


if __name__ == "__main__":
    sys.exit(main())
