"""``holdfast video``: what the commands answer, to people and to programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("av")

from typer.testing import CliRunner

from holdfast.cli.app import app
from tests.unit.video.made_videos import write_video

pytestmark = pytest.mark.slow

START = 1_767_225_600 * 10**9


def _run(*arguments: object, code: int = 0) -> str:
    answer = CliRunner().invoke(app, [str(each) for each in ("video", *arguments)])
    assert answer.exit_code == code, answer.output
    return answer.output


def test_a_file_goes_in_and_a_part_and_a_picture_come_out(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", audio=True)
    where = ("--store", tmp_path / "store", "--stream", "cam1")
    said = _run("import", made, *where, "--start", "2026-01-01T00:00:00Z")
    assert f"{made}: 48 packets, from 2026-01-01T00:00:00Z to 2026-01-01T00:00:01.920Z; " in said
    assert "packets of audio and the like left out." in said
    assert "48 packets are in the stream already" in _run("import", made, *where)
    out = tmp_path / "out.mp4"
    said = _run("export", out, *where, "--from", "2026-01-01T00:00:00.6Z", "--to", START + 10**9)
    assert said == f"{out}: 13 packets, from 2026-01-01T00:00:00.480Z to 2026-01-01T00:00:01Z.\n"
    said = json.loads(_run("export", out, *where, "--from", START + 10**9, "--exact", "--json"))
    expected = {"packet_count": 23, "start": START + 10**9, "end": START + 1_920_000_000, "is_exact": True}
    assert said == {"file": str(out), **expected, "damage_count": 0}
    png = tmp_path / "out.png"
    assert _run("frame", png, *where, "--at", START + 50_000_000) == (
        f"{png}: the picture of 2026-01-01T00:00:00.040Z.\n"
    )
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_an_import_answers_as_json_and_takes_several_files_one_after_the_other(tmp_path: Path) -> None:
    files = [write_video(tmp_path / f"{number}.ts", 12) for number in range(3)]
    where = ("--store", tmp_path / "store", "--stream", "cam1")
    said = json.loads(_run("import", *files, *where, "--start", START, "--json"))
    assert [each["start"] for each in said["files"]] == [START + 480_000_000 * number for number in range(3)]
    assert [each["packet_count"] for each in said["files"]] == [12, 12, 12]
    assert not any(each["is_skipped"] for each in said["files"])


def test_what_is_refused_says_file_and_cure_and_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    where = ("--store", tmp_path / "store", "--stream", "cam1")
    assert "empty.mp4 is empty" in _run("import", tmp_path / "empty.mp4", *where, code=2)
    assert "--start 'noon' is no time" in _run("import", tmp_path / "empty.mp4", *where, "--start", "noon", code=2)
    error = json.loads(_run("export", tmp_path / "out.mp4", *where, "--json", code=2))["error"]
    assert error["what"] == f"there is no stream 'cam1' in {tmp_path}/store."
    made = write_video(tmp_path / "a.ts", 48)
    made.write_bytes(made.read_bytes()[:-100])
    said = _run("import", made, *where, "--start", START, code=1)
    assert "a.ts ends early: after 46 packets" in said


def test_the_commands_are_there_without_the_libraries_of_the_extra() -> None:
    program = (
        "import sys\n"
        "from holdfast.cli.app import app\n"
        "import holdfast as hf\n"
        "assert not {'av', 'cv2'} & set(sys.modules), 'loaded where nothing asks for it'\n"
        "sys.modules['av'] = None\n"
        "from typer.testing import CliRunner\n"
        "open(sys.argv[1], 'wb').write(b'x')\n"
        "answer = CliRunner().invoke(app, ['video', 'import', sys.argv[1], '--store', sys.argv[2], '--stream', 's'])\n"
        "assert answer.exit_code == 2, answer.output\n"
        "assert \"pip install 'holdfast[video]'\" in answer.output, answer.output\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", program, f"{directory}/a.mp4", f"{directory}/store"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
