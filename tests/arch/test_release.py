"""A release: what has to be there first, what it commits, and what its tag says.  It publishes nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools.release import GROUPS, PLACEHOLDER, ROOT, NotReady, Release, parts

PROJECT = f"""\
[project]
name = "holdfast"
version = "0.1.0"

[project.urls]  # it stands for the public address
Homepage = "https://{PLACEHOLDER}"
Source = "https://{PLACEHOLDER}/source"
"""
NOTES = "# Holdfast 0.2.0\n\nRuns in [shards](../shards.md).\n"
UPGRADING = "# Upgrading\n\n## To 0.2\n\nNothing to do.\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with what a release looks at: settings of towncrier and all."""
    rules = (ROOT / "pyproject.toml").read_text()
    files = {
        "pyproject.toml": PROJECT + "\n" + rules[rules.index("[tool.towncrier]") :],
        "src/holdfast/__init__.py": '"""Exactly once."""\n\n__version__ = "0.1.0"\n',
        "CHANGELOG.md": "# Changelog\n\n<!-- the next release comes here -->\n\n## 0.1.0\n\nFirst.\n",
        "changes/README.md": "Fragments.\n",
        "changes/+shards.added.md": "A pipeline runs in shards.\n",
        "docs/releases/0.2.0.md": NOTES,
        "docs/upgrading.md": UPGRADING,
        ".gitignore": "build\ndist\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.name", "A developer")
    git(tmp_path, "config", "user.email", "developer@example.com")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=place, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def release_of(clone: Path, version: str = "0.2.0", url: str = "https://example.com/holdfast/") -> Release:
    return Release(clone, version, url)


def commit_all(clone: Path) -> None:
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "Change")


def lacks_notes(clone: Path) -> None:
    (clone / "docs/releases/0.2.0.md").unlink()
    commit_all(clone)


def has_long_notes(clone: Path) -> None:
    (clone / "docs/releases/0.2.0.md").write_text("line\n" * 100)
    commit_all(clone)


def says_nothing_of_upgrades(clone: Path) -> None:
    (clone / "docs/upgrading.md").write_text("# Upgrading\n")
    commit_all(clone)


def is_changed(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text("# Other\n")


def is_on_a_branch(clone: Path) -> None:
    git(clone, "switch", "--quiet", "--create", "other")


def has_the_tag(clone: Path) -> None:
    git(clone, "tag", "v0.2.0")


def is_newer(clone: Path) -> None:
    (clone / "pyproject.toml").write_text(PROJECT.replace("0.1.0", "0.10.0"))
    commit_all(clone)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lacks_notes, "there is no docs/releases/0.2.0.md"),
        (has_long_notes, "more than 80"),
        (says_nothing_of_upgrades, "no section 'To 0.2'"),
        (is_changed, "not committed"),
        (is_on_a_branch, "the branch is other"),
        (has_the_tag, "there is a tag v0.2.0 already"),
        (is_newer, "the version is 0.10.0"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_written(clone, spoil, said):
    spoil(clone)
    before = git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain")
    with pytest.raises(NotReady, match=r"(?s)Do:  ") as caught:
        release_of(clone).check()
    assert said in str(caught.value)
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain")) == before


def test_a_release_without_an_address_is_refused(clone):
    with pytest.raises(NotReady, match="which is no address"):
        release_of(clone, url="").check()


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.2.0rc1", ""])
def test_a_version_is_three_numbers(version):
    with pytest.raises(NotReady, match="three numbers"):
        parts(version)


def test_one_commit_has_version_addresses_and_change_log_and_is_made_once(clone):
    release = release_of(clone)
    release.check()
    release.commit()
    project = (clone / "pyproject.toml").read_text()
    assert 'version = "0.2.0"' in project
    assert '__version__ = "0.2.0"\n' in (clone / "src/holdfast/__init__.py").read_text()
    assert PLACEHOLDER not in project
    assert 'Source = "https://example.com/holdfast/source"' in project
    assert "[project.urls]\n" in project
    changes = (clone / "CHANGELOG.md").read_text()
    assert changes.index("## 0.2.0 (") < changes.index("A pipeline runs in shards.") < changes.index("## 0.1.0")
    assert release.fragments() == []
    assert git(clone, "status", "--porcelain") == ""
    made = git(clone, "rev-parse", "HEAD")
    release.check()
    release.commit()
    assert git(clone, "rev-parse", "HEAD") == made


def test_an_address_that_comes_later_is_a_commit_of_its_own(clone):
    before = release_of(clone, url=f"https://{PLACEHOLDER}")
    before.check()
    before.commit()
    assert 'version = "0.2.0"' in before.project_text()
    assert "[project.urls]  # it stands for" in before.project_text()
    made, changes = git(clone, "rev-parse", "HEAD"), (clone / "CHANGELOG.md").read_text()
    release = release_of(clone)
    release.check()
    release.commit()
    assert PLACEHOLDER not in release.project_text()
    assert git(clone, "rev-parse", "HEAD^") == made
    assert (clone / "CHANGELOG.md").read_text() == changes


def test_tests_count_only_of_this_commit_and_all_of_them(clone):
    release = release_of(clone)
    report = {"commit": git(clone, "rev-parse", "HEAD"), "is_good": True, "groups": {name: {} for name in GROUPS}}
    assert not release.is_tested()
    path = clone / "build/tests.json"
    path.parent.mkdir()
    path.write_text(json.dumps(report))
    assert release.is_tested()
    for wrong in ({"commit": "1f2e"}, {"is_good": False}, {"groups": {"unit": {}}}):
        path.write_text(json.dumps(report | wrong))
        assert not release.is_tested()


def test_the_tag_has_the_notes_and_the_hash_of_each_file(clone):
    release = release_of(clone)
    file = clone / "dist/holdfast-0.2.0.tar.gz"
    file.parent.mkdir()
    file.write_bytes(b"")
    release.make_tag([file])
    text = git(clone, "tag", "--list", "--format=%(contents)", "v0.2.0")
    assert text.startswith("Holdfast 0.2.0\n\nRuns in shards.\n\nSHA-256:\n")
    assert text.endswith("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  holdfast-0.2.0.tar.gz")
    with pytest.raises(NotReady, match="already"):
        release.check()
