"""The files of ops/ for systemd, Kubernetes and Docker hold what a pipeline needs of each (design/0052, section 5).

Plain checks, of what was written by hand here: no schema of Kubernetes, and no image is built.
"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

OPS = Path(__file__).resolve().parents[2] / "ops"
UNIT = OPS / "systemd/holdfast@.service"
DOCKERFILE = OPS / "docker/Dockerfile"
SET = OPS / "kubernetes/pipeline.yaml"


def objects() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(SET.read_text())}


def container() -> Any:
    (only,) = objects()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return only


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_unit_restarts_what_a_restart_can_mend_and_nothing_else() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "3", "4"]
    assert int(service["TimeoutStopSec"]) >= 60, "a clean stop takes the rest of an epoch"
    assert service["OOMPolicy"] == "stop"


def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not there")
    unit = tmp_path / "holdfast@trips.service"
    # The program of a unit must be there; that of the user is not.
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    told = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in told.stderr.splitlines() if unit.name in line] == []


def test_every_object_has_what_kubernetes_requires() -> None:
    found = objects()
    assert set(found) == {"PersistentVolumeClaim", "StatefulSet"}
    for each in found.values():
        assert each["apiVersion"] in ("v1", "apps/v1")
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"])
    spec = found["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == set(volumes)
    claim = volumes["checkpoint"]["persistentVolumeClaim"]["claimName"]
    assert claim == found["PersistentVolumeClaim"]["metadata"]["name"]


def test_a_pipeline_runs_once_and_has_time_to_stop() -> None:
    spec = objects()["StatefulSet"]["spec"]
    assert spec["replicas"] == 1, "several would fence each other"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60


def test_the_probe_asks_for_the_health_of_the_checkpoint_that_is_written() -> None:
    command, probe = container()["command"], container()["readinessProbe"]["exec"]["command"]
    assert command[:2] == ["holdfast", "run"]
    assert probe[:2] == ["holdfast", "status"]
    assert "--check" in probe
    assert probe[probe.index("--checkpoint") + 1] == command[command.index("--checkpoint") + 1]
    assert "livenessProbe" not in container(), "a restart mends none of what --check tells: a lag, a sink that is away"


def test_the_image_names_its_base_runs_as_a_user_and_lets_signals_through() -> None:
    steps = instructions()
    base = next(rest for name, rest in steps if name == "FROM")
    assert re.fullmatch(r"\S+:\S+", base), base
    assert not base.endswith(":latest")
    assert [rest for name, rest in steps if name == "USER"][-1] not in ("root", "0")
    for name, rest in steps:
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list), "a shell would keep SIGTERM"
    for name, rest in steps:
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest
        if name == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
