"""examples/video: its cameras, its detectors and its tracker; and the pipelines, killed."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

import holdfast as hf
from examples.video import detector, scene
from examples.video.scene import CAMERAS, GATE, LEFT, RIGHT, picture_of, strip_of
from examples.video.tracker import LOST_AFTER, Track
from holdfast.testing import flow_contract
from tests.docs.pages import ROOT, blocks, environment

SMALL = (320, 180)


def reduced(camera: scene.Camera, number: int) -> Any:
    """Return what a detector gets of a frame."""
    return cv2.resize(picture_of(camera, number), (160, 90), interpolation=cv2.INTER_AREA)


@pytest.mark.slow
@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: camera.name)
def test_each_frame_of_a_film_says_its_number(camera: scene.Camera, tmp_path: Path) -> None:
    scene.film(tmp_path / "film.mp4", camera, 5, seed=2, size=SMALL)
    with av.open(str(tmp_path / "film.mp4")) as film:
        said = [strip_of(frame.to_ndarray(format="gray")) for frame in film.decode(video=0)]
    assert said == [(camera.number, number) for number in camera.frames(5)]


def test_a_strip_that_cannot_be_read_says_nothing() -> None:
    grey = cv2.cvtColor(picture_of(GATE, 7), cv2.COLOR_BGR2GRAY)
    assert strip_of(grey) == (0, 7)
    grey[:, 200:220] = 255 - grey[:, 200:220]
    assert strip_of(grey) is None


def test_the_same_seed_gives_the_same_pictures() -> None:
    assert (picture_of(LEFT, 5, seed=1) == picture_of(LEFT, 5, seed=1)).all()
    assert (picture_of(LEFT, 5, seed=1) != picture_of(LEFT, 5, seed=2)).any()


@pytest.mark.slow
@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: camera.name)
def test_the_classical_detector_finds_each_thing_once(camera: scene.Camera) -> None:
    find = detector.detector_of()
    for number in range(0, 900, 7):
        there = [thing for thing in range(scene.THINGS) if (number + 40 * thing) % scene.AWAY_EVERY >= scene.AWAY_FOR]
        assert len(find(reduced(camera, number))) == len(there), number


def test_a_thing_that_is_nearer_is_shifted_further_between_two_cameras() -> None:
    for number in range(20, 40):
        left, right = (detector.detector_of()(reduced(camera, number)) for camera in (LEFT, RIGHT))
        by_height = sorted(left, key=lambda box: box[1]), sorted(right, key=lambda box: box[1])
        shifts = [one[0] - other[0] for one, other in zip(*by_height, strict=True)]
        assert shifts == sorted(shifts)
        assert shifts[-1] > shifts[0] > 0


def test_a_tracker_keeps_numbers_over_restores_and_gives_new_ones_after_an_absence() -> None:
    here, there = (10, 10, 8, 8), (90, 40, 8, 8)
    boxes: list[list[detector.Box]] = [[here, there] for _ in range(4)]
    boxes += [[there]] * (LOST_AFTER // 2) + [[here, there]] * 2 + [[here]] * (LOST_AFTER + 1) + [[here, there]] * 2
    packets = list(enumerate(boxes))
    graph = hf.flow.Graph("track")
    graph.output("objects", graph.input("boxes", list) | hf.flow.node(Track))
    labels = [[thing["label"] for thing in objects] for _, objects in graph.run({"boxes": packets})["objects"]]
    assert labels[0] == labels[LOST_AFTER // 2 + 5] == ["#0", "#1"]
    assert labels[-1] == ["#0", "#2"]
    flow_contract(Track, packets)


# --- an ONNX model, made by hand ------------------------------------------------------------------------------------


def field(number: int, value: int | bytes | str) -> bytes:
    """Return a field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number as a protocol buffer has it."""
    low = bytes([value & 127 | (128 if value > 127 else 0)])
    return low + varint(value >> 7) if value > 127 else low


def tensor(name: str, *shape: int, kind: int = 1) -> bytes:
    """Return the declaration of an input or output."""
    sizes = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, sizes)))


def node_of(kind: str, inputs: list[str], output: str) -> bytes:
    """Return a node of a graph."""
    return b"".join(field(1, each) for each in inputs) + field(2, output) + field(4, kind)


def constant(name: str, values: list[float], *shape: int) -> bytes:
    """Return numbers that a graph has."""
    sizes = b"".join(field(1, size) for size in shape)
    return sizes + field(2, 1) + field(8, name) + field(9, struct.pack(f"<{len(values)}f", *values))


def model_of_brightness() -> bytes:
    """Return a model that gives two boxes of a picture of 32 x 18, the second one scored by how bright it is."""
    size = [1, 3, 18, 32]
    still = constant("still", [4, 2, 8, 6, 0.9, 16, 9, 32, 18, 0], 1, 2, 5)
    bright = constant("bright", [0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 1, 2, 5)
    nodes = [
        node_of("GlobalAveragePool", ["picture"], "colours"),
        node_of("Flatten", ["colours"], "flat"),
        node_of("MatMul", ["flat", "weights"], "mean"),
        node_of("Mul", ["bright", "mean"], "score"),
        node_of("Add", ["still", "score"], "boxes"),
    ]
    graph = b"".join(field(1, each) for each in nodes) + field(2, "brightness")
    graph += b"".join(field(5, each) for each in (still, bright, constant("weights", [1 / 3] * 3, 3, 1)))
    graph += field(11, tensor("picture", *size)) + field(12, tensor("boxes", 1, 2, 5))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


def test_an_onnx_model_is_asked_where_a_file_is_given(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model_of_brightness())
    find = detector.detector_of(str(tmp_path / "model.onnx"))
    dark, light = np.zeros((90, 160, 3), np.uint8), np.full((90, 160, 3), 250, np.uint8)
    assert find(dark) == [(20, 10, 20, 20)]
    assert find(light) == [(20, 10, 20, 20), (80, 45, 80, 45)]


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(ROOT / "docs/video.md", "python"):
        exec(compile(block.text, str(block), "exec"), names)
    names["pipeline"].explain()
    with av.open(str(tmp_path / "gate.ts")) as video:
        assert [strip_of(frame.to_ndarray(format="gray")) for frame in video.decode(video=0)] == [
            (0, number) for number in range(60)
        ]


# --- the pipelines ----------------------------------------------------------------------------------------------------


def test_each_pipeline_is_a_file_of_a_page() -> None:
    for name in ("events", "annotate", "both", "cameras"):
        assert len((ROOT / "examples" / "video" / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("more", [[], ["--sink", "postgres"], ["--wipe"]], ids=["sqlite", "postgres", "wipe"])
def test_the_demo_loses_no_frame(more: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.video.drive", "--seed", "5", "--work", str(tmp_path / "work"), *more]
    told = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    assert "duplicates=0 lost=0 differences=0 kills=5" in told.stdout
    assert (tmp_path / "work" / "contact_sheet.png").stat().st_size > 10_000
    assert RIGHT.name in {path.stem for path in (tmp_path / "work" / "films").iterdir()}
