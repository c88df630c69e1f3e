"""``python -m tools.vendor``: brings what the page and the site take of others into the tree, from npm, pinned by hash.

The files are kept in the tree, those of the page also in every wheel: neither a build nor a page needs a network.
``--check`` compares them with the pins alone.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src/holdfast/page/assets"
SITE_ASSETS = ROOT / "tools/site/assets"


@dataclass(frozen=True)
class Vendored:
    """A package of npm.

    Parameters
    ----------
    url : str
        Its archive.
    sha512 : str
        Of the archive, in base64, as npm says.
    files : mapping of str to (str, str)
        Path in the archive -> name among the assets, and its SHA-256.
    folder : Path
        Where its files go.
    """

    url: str
    sha512: str
    files: Mapping[str, tuple[str, str]]
    folder: Path = ASSETS


PACKAGES = (
    Vendored(
        "https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {
            "package/dist/uPlot.iife.min.js": (
                "uPlot.iife.min.js",
                "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
            ),
            "package/dist/uPlot.min.css": (
                "uPlot.min.css",
                "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
            ),
            "package/LICENSE": ("uPlot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
        },
    ),
    Vendored(  # draws the diagrams of the site
        "https://registry.npmjs.org/@mermaid-js/tiny/-/tiny-12.0.0.tgz",
        "ZW9YXy+3tSLPscBT+NnQO0K0qYH7BGES5nExl6Snoygey7xd2N0cO7Nq30N5k/u7gIeYoCrldyVy+VTCMWrNDQ==",
        {
            "package/dist/mermaid.tiny.js": (
                "mermaid.tiny.js",
                "9f2807e402479d2864bfd9a95052076fc69d0ff45a0b25148b84b70fc33425b9",
            ),
            "package/LICENSE": ("mermaid.LICENSE", "ec9fb67dcb25eccc416ed56e1aab819222c805a2a4bfe4cb19e7556bf2ffde80"),
        },
        SITE_ASSETS,
    ),
)


def differing() -> list[str]:
    """Return the assets that are not what they should be."""
    pins = [(package.folder / name, digest) for package in PACKAGES for name, digest in package.files.values()]
    return [path.name for path, digest in pins if not path.is_file() or _sha256(path.read_bytes()) != digest]


def fetch(package: Vendored) -> dict[str, bytes]:
    """Return the files of a package; SystemExit if anything is not what it should be."""
    with urllib.request.urlopen(package.url, timeout=60) as answer:
        archive = answer.read()
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != package.sha512:
        sys.exit(f"{package.url} is not the archive that is pinned")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for path, (name, digest) in package.files.items():
            member = tar.extractfile(path)
            data = b"" if member is None else member.read()
            if _sha256(data) != digest:
                sys.exit(f"{path} of {package.url} is not the file that is pinned: {_sha256(data)}")
            found[name] = data
    return found


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Bring them, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the pins, and fetch nothing")
    if not parser.parse_args().check:
        for package in PACKAGES:
            for name, data in fetch(package).items():
                (package.folder / name).write_bytes(data)
    if wrong := differing():
        sys.exit(f"not what is pinned: {', '.join(wrong)}; python -m tools.vendor brings them")


if __name__ == "__main__":
    main()
