"""Who took a pipeline over, and whether that process is alive: as far as this host can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.commit.owner import noted_owner, this_process
from holdfast.store.paths import open_store

NOTE = """
import sys
from pathlib import Path
from holdfast.commit.owner import this_process
Path(sys.argv[1]).write_bytes(this_process(7))
sys.stdin.read()
"""


def test_this_process_is_alive(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.prepare()
    store.put("generations/00000001.json", this_process(7))
    assert noted_owner(store).is_alive


@pytest.mark.slow
def test_a_process_that_was_killed_is_dead_also_before_its_parent_asks(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.prepare()
    path = tmp_path / "who"
    process = subprocess.Popen([sys.executable, "-c", NOTE, str(path)], stdin=subprocess.PIPE)
    try:
        while not path.exists() or not path.stat().st_size:
            assert process.poll() is None
        store.put("generations/00000001.json", path.read_bytes())
        assert noted_owner(store).is_alive
        process.kill()
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":  # not reaped: nobody has waited for it
            pass
        assert noted_owner(store).is_alive is False
    finally:
        process.kill()
        process.communicate()
    assert noted_owner(store).is_alive is False
