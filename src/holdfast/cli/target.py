"""TARGET of the command line: from ``trips.py:pipeline`` or ``package.module:pipeline`` to the pipeline it names.

A file is loaded as Python loads a script: its own functions are sent to the executors by value, as those of
``__main__`` do, so that no executor needs the file; its imports are looked up in its directory, here and in workers on
this machine.  ``if __name__ == "__main__":`` blocks do not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.spark.plans.udf_types import read_without_session

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline

_loaded: list[ModuleType] = []
"""Keeps the modules that were loaded from files: a stream forgotten in one can be found only while it lives."""

_FORMS = "TARGET is path/to/file.py:pipeline or package.module:pipeline; the part after the colon may be omitted."


def load_target(target: str) -> Pipeline:
    """Return the pipeline that TARGET names.

    Parameters
    ----------
    target : str
        ``path/to/file.py:name`` or ``package.module:name``.  Without a name: the only pipeline in the module.

    Raises
    ------
    InvalidPipeline
        If there is no such file, module or name, if it is not a pipeline, if there are none or several to choose from,
        or if the module itself fails: names the line.
    """
    from holdfast.pipeline import Pipeline

    place, name = _split(target)
    with read_without_session():
        module = _load(place)
    if name:
        return _named(module, name, place, Pipeline)
    return _only(module, place, Pipeline)


def loaded_files() -> list[str]:
    """Return the files of all modules that this process has loaded, the pipelines' own among them."""
    modules = [*sys.modules.values(), *_loaded]  # a pipeline's is not known by its name
    files = [getattr(module, "__file__", None) for module in modules]
    return [file for file in files if file]


def _split(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    # Not in "C:\\flows\\trips.py" or "C:/flows/trips.py": there the colon belongs to the drive.
    if not colon or "/" in name or "\\" in name:
        place, name = target, ""
    if not place or (name and not name.isidentifier()):
        raise InvalidPipeline(f"TARGET {target!r} names no pipeline.", why=_FORMS, do="for instance trips.py:pipeline.")
    return place, name


def _load(place: str) -> ModuleType:
    if place.endswith(".py") or "/" in place or "\\" in place:
        return _load_file(place)
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise _failed(place, error) from error
        raise InvalidPipeline(
            f"there is no module {place!r}.",
            why=f"Python knows no {error.name!r} here, nor in the current directory.",
            do=_FORMS,
        ) from None
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(place, error) from error


def _load_file(place: str) -> ModuleType:
    path = Path(place).expanduser()
    if not path.is_file():
        why = "it is a directory." if path.is_dir() else f"looked in {Path.cwd()}."
        raise InvalidPipeline(f"there is no file {place!r}.", why=why if not path.is_absolute() else "", do=_FORMS)
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidPipeline(f"{place!r} is not a Python file.", why="its name does not end in .py.", do=_FORMS)
    _add_to_path(path.parent)
    module = importlib.util.module_from_spec(spec)
    covered = sys.modules.get(path.stem)
    # Known by its name while it runs (dataclasses and typing look it up there), and not afterwards: what Python
    # cannot import by name is pickled by value, and so needs no file on the executors.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(place, error) from error
    finally:
        if covered is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = covered
    _loaded.append(module)
    return module


def _add_to_path(directory: Path) -> None:
    entry = str(directory)
    if entry not in sys.path:
        sys.path.insert(0, entry)
    inherited = os.environ.get("PYTHONPATH", "")
    if entry not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [entry, inherited]))


def _failed(place: str, error: BaseException) -> InvalidPipeline:
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return InvalidPipeline(
        f"{place} cannot be loaded: {said}",
        why=_line_of(error),
        do="fix it; python runs the same code.",
    )


def _line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} of {error.filename}: {(error.text or '').strip()}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    # The last line of the user's own code: below it are the libraries that it called, this one among them.
    library = os.path.dirname(holdfast.__file__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(library)] or frames
    return f"line {own[-1].lineno} of {own[-1].filename}: {own[-1].line}" if own else ""


def _pipelines(module: ModuleType, kind: type) -> Mapping[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, kind)}


def _named(module: ModuleType, name: str, place: str, kind: type[Pipeline]) -> Pipeline:
    value = getattr(module, name, None)
    if isinstance(value, kind):
        return value
    there = ", ".join(_pipelines(module, kind)) or "no pipeline at all"
    if not hasattr(module, name):
        what, why = f"{place} has no {name!r}.", f"it has {there}."
    else:
        what, why = f"{place}:{name} is not a pipeline.", f"it is a {type(value).__name__}; {place} has {there}."
    raise InvalidPipeline(what, why=why, do=f"name one of these: {place}:<name>.")


def _only(module: ModuleType, place: str, kind: type[Pipeline]) -> Pipeline:
    found = _pipelines(module, kind)
    # Two names of one pipeline are no choice.
    different = {id(value): value for value in found.values()}
    if len(different) == 1:
        pipeline: Pipeline = next(iter(different.values()))
        return pipeline
    if not found:
        raise InvalidPipeline(
            f"{place} has no pipeline.",
            why="no name of the module holds one.",
            do="assign it: pipeline = hf.Pipeline(...).",
        )
    raise InvalidPipeline(
        f"{place} has {len(different)} pipelines.",
        why=f"they are {', '.join(found)}.",
        do=f"say which: {place}:{next(iter(found))}.",
    )
