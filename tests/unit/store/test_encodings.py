"""Paths that are not ASCII, in processes and JVMs of all locales: they work, or the start says what to do."""

import os
import subprocess
import sys

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.store import encodings


@pytest.mark.parametrize(
    ("of_locale", "of_names", "variables"),
    [
        ("ANSI_X3.4-1968", "utf-8", {"LC_ALL": "C.UTF-8"}),
        ("iso8859-1", "utf-8", {"LC_ALL": "C.UTF-8"}),
        ("UTF-8", "utf-8", {}),
        ("ANSI_X3.4-1968", "ascii", {}),
    ],
    ids=["C", "Latin-1 in UTF-8 mode", "UTF-8", "C without UTF-8 mode"],
)
def test_a_jvm_is_started_in_a_locale_that_names_files_as_this_process_does(
    monkeypatch, of_locale, of_names, variables
):
    monkeypatch.setattr("holdfast.store.encodings.locale.getencoding", lambda: of_locale)
    monkeypatch.setattr("holdfast.store.encodings.sys.getfilesystemencoding", lambda: of_names)
    assert encodings.variables_of_jvm() == variables


def test_a_jvm_that_was_started_elsewhere_is_refused_for_a_path_that_it_cannot_name():
    encodings.check_jvm("the checkpoint", "/data/caf\u00e9", "UTF-8")
    encodings.check_jvm("the checkpoint", "/data/cafe", "ANSI_X3.4-1968")
    with pytest.raises(InvalidPipeline, match="the JVM of this process cannot use") as refused:
        encodings.check_jvm("the checkpoint", "/data/caf\u00e9", "ANSI_X3.4-1968")
    assert "LC_ALL=C.UTF-8" in refused.value.do


def said(program, **variables):
    """Return what a process prints that is started with these variables of a locale alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env={**environment, **variables}, capture_output=True, check=True)
    return run.stdout.decode()


CHECKPOINT = """
from holdfast.errors import InvalidPipeline
from holdfast.store.local import directory_of
try:
    print(ascii(str(directory_of({path}))))
except InvalidPipeline as error:
    print(error)
"""
PIPELINE = """
import holdfast as hf
from holdfast.errors import InvalidPipeline
rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
for path in ("/data/cafe.db", "/data/caf\\u00e9.db"):
    try:
        print(hf.Pipeline("p", rows | hf.write.sqlite(path, table="t", name="out")).name)
    except InvalidPipeline as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}, {}])
def test_a_process_in_the_c_locale_speaks_utf_8(variables):
    assert said(CHECKPOINT.format(path="'/data/caf\\u00e9'"), **variables) == "'/data/caf\\xe9'\n"


@pytest.mark.slow
def test_a_path_that_this_process_cannot_name_is_refused_before_anything_starts_with_the_cure():
    variables = {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    assert said(CHECKPOINT.format(path="'/data/cafe'"), **variables) == "'/data/cafe'\n"
    for path in ("'/data/caf\\u00e9'", "'/data/caf\\udcc3\\udca9'"):  # of a module, and of the command line
        refused = said(CHECKPOINT.format(path=path), **variables)
        assert refused.startswith("the checkpoint has the path '/data/caf\\")
        assert "LC_ALL=C.UTF-8" in refused
    good, *refused = said(PIPELINE, **variables).splitlines()
    assert good == "p"
    assert refused[0].startswith("'out', built at <string>:7, has the path '/data/caf\\xe9.db'")
