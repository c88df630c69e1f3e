"""Writes constraints.txt: beside each version the hashes of all its files, as the index that pip asks gives them.

    .venv/bin/python -m tools.lock ruff==0.17.6 new-one==1.0    these change or come; of all others nothing is asked

A marker (``'new-one==1.0 ; python_version < "3.12"'``) is for what is installed with some Pythons only, and stays with
the name.  All files of a version count, of all platforms: one lock serves every machine.  Which versions belong
together is pip's to say: upgrade a virtual environment, ``pip check``, and bring the new versions here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

LOCK = Path(__file__).resolve().parents[1] / "constraints.txt"
JAVA = "# java: "
"""Before the line of the JDK, which is installed only where no Java is found (tools/with_java.sh)."""

_PIN = re.compile(
    rf"(?m)^(?:{JAVA})?(?P<name>[\w.-]+)==(?P<version>[\w.!+]+)(?P<marker>(?: ; [^\\\n]*[^\\\s])?)"
    r"(?P<hashes>(?:[ \\\n]+--hash=sha256:[0-9a-f]+)*)"
)


def main(changes: Sequence[str]) -> None:
    """Write the lock."""
    text = LOCK.read_text()
    comments = [line for line in text.splitlines() if line.startswith("#") and not line.startswith(JAVA)]
    pins = {name: (version, marker, hashes) for name, version, marker, hashes in _pins(text)}
    (java,) = (name for name, *_ in _pins("\n".join(line for line in text.splitlines() if line.startswith(JAVA))))
    for name, version, marker, _ in _pins("\n".join(changes)):
        pins[name] = (version, marker or pins.get(name, ("", "", []))[1], [])
    index = Index()
    locked = {
        name: [f"{name}=={version}{marker}", *(hashes or index.hashes(name, version))]
        for name, (version, marker, hashes) in sorted(pins.items(), key=lambda pin: canonicalize_name(pin[0]))
    }
    lines = [JAVA + " ".join(locked.pop(java)), *(" \\\n    ".join(lines) for lines in locked.values())]
    LOCK.write_text("\n".join([*comments, *lines]) + "\n")


def _pins(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    for pin in _PIN.finditer(text):
        yield pin["name"], pin["version"], pin["marker"], pin["hashes"].replace("\\", " ").split()


class Index:
    """The package index that pip is configured for, asked by pip's own means: no address stands here."""

    def __init__(self) -> None:
        from pip._internal.commands.download import DownloadCommand
        from pip._internal.index.collector import LinkCollector

        command = DownloadCommand("download", "")
        options, _ = command.parse_args([])
        with command.main_context():
            self._session: Any = command._build_session(options)
        options.find_links = []  # a directory of this machine is no index
        self._collector: Any = LinkCollector.create(self._session, options=options)

    def hashes(self, name: str, version: str) -> list[str]:
        """Return ``--hash`` options of all files of a version, sorted."""
        found = sorted(
            f"--hash=sha256:{link.hash}"
            for link in self._links(name)
            if link.hash_name == "sha256" and _version(link.filename) == Version(version)
        )
        if not found:
            raise SystemExit(f"lock: the index has no {name} {version}")
        print(f"{name} {version}: {len(found)} files", flush=True)
        return found

    def _links(self, name: str) -> Iterator[Any]:
        from pip._internal.index.collector import parse_links

        sources = self._collector.collect_sources(canonicalize_name(name), candidates_from_page=lambda _: [])
        for source in sources.index_urls:
            page = self._collector.fetch_response(source.link)
            yield from parse_links(page) if page else ()


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
