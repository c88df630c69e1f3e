"""The project's pages: their blocks of code, links and headings, and transcripts that can be played."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "changes/README.md"]
    + [page for folder in ("docs", "design", "examples") for page in (ROOT / folder).rglob("*.md")]
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

COMMAND_TIMEOUT_S = 300
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One block of code on a page."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str | None:
        """The file that a reader saves it as: its first line is a comment with nothing but that name."""
        match = re.match(r"# ([\w/]+\.py)\n", self.text)
        return match[1] if match else None

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in their order; of these languages, if any are given."""
    text = page.read_text()
    return [
        Block(page, match[1], match[2], text[: match.start()].count("\n") + 2)
        for match in _FENCE.finditer(text)
        if not languages or match[1] in languages
    ]


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Return the targets of all links into the project."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def shown(page: Path) -> str:
    """Return a page's path as people say it."""
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


# --- transcripts ----------------------------------------------------------------------------------------------------


def play(page: Path, directory: Path) -> None:
    """Do what a page says, from top to bottom: save its files, type its commands, compare what they answer.

    A line of dots stands for any lines, dots within a line for any text.  Lines that the page leaves out are no
    contradiction: Spark has much to say.
    """
    for block in blocks(page, "python", "console"):
        if block.language == "python":
            if block.file_name:
                (directory / block.file_name).write_text(block.text)
            continue
        for command, expected in _commands(block.text):
            answer = run(command, directory)
            missing = _first_missing(expected, answer)
            assert missing is None, f"{block}: $ {command}\ndoes not answer {missing!r} (in this order), but:\n{answer}"


def run(command: str, directory: Path) -> str:
    """Type one command in a shell; return what the reader of a terminal sees."""
    places = directory / ".bin"
    if not places.exists():
        places.mkdir()
        for name, arguments in {"python": "", "holdfast": "-m holdfast "}.items():
            (places / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
            (places / name).chmod(0o755)
    # A file, not a pipe: the JVM of a killed process holds it open for a moment.
    with (directory / ".answer").open("w+") as answer:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=directory,
            env=environment() | {"PATH": f"{places}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        answer.seek(0)
        text = answer.read()
    # An interactive shell says so; ours may be the very process that was killed.
    return text + ("\nKilled\n" if ended.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL) else "")


def environment() -> dict[str, str]:
    """Return the environment of a reader: ours without Holdfast's variables, and the package to be found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable, "HOLDFAST_MASTER": "local[2]"}


def _commands(transcript: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() not in ("", "..."):
            found[-1][1].append(line)
    return found


def _first_missing(expected: list[str], answer: str) -> str | None:
    """Return the first expected line that does not come, behind the ones before it."""
    lines = iter(answer.splitlines())
    for wanted in expected:
        pattern = re.compile(".*".join(map(re.escape, wanted.rstrip().split("..."))))
        if not any(pattern.fullmatch(line.rstrip()) for line in lines):
            return wanted
    return None
