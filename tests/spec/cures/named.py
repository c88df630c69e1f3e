"""What an advice names, looked up: commands, options, settings, calls of ``hf`` and their arguments."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import typer.main

import holdfast as hf
from holdfast import flow
from holdfast.cli.app import app
from holdfast.config import known_variables
from holdfast.flow import calculators
from holdfast.starts.start import start

ROOMS = ("operators/", "connectors/")
"""Where an argument that an advice names must be one of what is built there."""

OF_STREAMS = {"name", "renamed_from", "migrate"}

_MODULES: Mapping[str, ModuleType] = {
    "hf": hf,
    "holdfast": hf,
    "read": hf.read,
    "write": hf.write,
    "control": hf.control,
    "policy": hf.policy,
}
_SOURCE_ARGUMENT = re.compile(r"where the source is built|at the source|read\.\w+")
_BUILT_IN = {
    "operators/row_id.py": "connectors/reading/row_id.py",
    "operators/calling.py": "operators/call.py",
}
"""Where what a module checks for is built, if not there."""
_SHARED = {
    "connectors/kit/": hf.write,
    "connectors/control/": hf.write,
    "connectors/reading/": hf.read,
    "connectors/formats/": hf.read,
}
"""Rooms that all sinks, or all sources, share."""
_OTHERS = {"--prefix"}
"""Options of other programs."""
_FREE = {
    # text in the language of another system, or a column that the user names
    "connectors/postgres/session.py": {"host", "port", "dbname", "user"},
    "spark/launch/java.py": {"openjdk"},
    # of the class that a step returns, which only authors of steps call
    "state/checks.py": {"outputs", "changes"},
}


def faults_of(module: str, text: str) -> list[str]:
    """Return what an advice names that does not exist.

    Parameters
    ----------
    module : str
        File below ``src/holdfast`` that gives the advice.
    text : str
        The advice; what is filled in stands in braces.
    """
    calls = list(_calls(text))
    plain = text
    for call in calls:
        plain = plain.replace(call, " ")
    return [*_command_faults(text), *_call_faults(calls), *_name_faults(text), *_argument_faults(module, text, plain)]


# --- the command line and its settings --------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return all commands by their words: ``checkpoint create`` too."""
    found: dict[str, click.Command] = {}

    def add(words: str, command: Any) -> None:
        found[words] = command
        for name, inner in getattr(command, "commands", {}).items():
            add(f"{words} {name}".strip(), inner)

    add("", typer.main.get_command(app))
    return found


@cache
def _options() -> dict[str, set[str]]:
    return {
        words: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        | {"--help"}
        for words, command in commands().items()
    }


def _command_faults(text: str) -> Iterator[str]:
    options = _options()
    for found in re.finditer(r"\bholdfast ([a-z][a-z-]*)((?: [a-z][a-z-]*\b)?)([^;:)]*)", text):
        first, second, rest = found[1], found[2].strip(), found[3]
        words = f"{first} {second}" if f"{first} {second}" in options else first
        if words not in options:
            yield f"there is no command: holdfast {words}"
            continue
        if second and words == first and any(each.startswith(f"{first} ") for each in options):
            yield f"there is no command: holdfast {first} {second}"
        # A sentence may go on behind the command: options of one command only as far as it is the command's words.
        stretch = re.match(r"(?:\s+(?:[A-Z]+(?==|\b)|\{[^}]*\}|<[^>]*>|--[a-z-]+|[\w./:-]+))*", rest)
        for option in re.findall(r"--[a-z][a-z-]*", stretch[0] if stretch else ""):
            if option not in options[words]:
                yield f"holdfast {words} has no option {option}"
    every = {option for each in options.values() for option in each} | _OTHERS
    yield from (
        f"no command has {option}" for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if option not in every
    )
    known = set(known_variables())
    yield from (
        f"there is no setting {each}" for each in re.findall(r"HOLDFAST_[A-Z_]*[A-Z]", text) if each not in known
    )


# --- calls ------------------------------------------------------------------------------------------------------------


def _calls(text: str) -> Iterator[str]:
    """Yield the calls of ours that stand in a text, with their parentheses."""
    for found in re.finditer(
        r"(?<![\w./])(?:hf|holdfast|read|write|run)(?:\.\w+)+\(|(?<![\w.])(?:CallbackFeed|Hooks)\(", text
    ):
        depth, end = 0, found.start()
        for end in range(found.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                break
        if depth == 0:
            yield text[found.start() : end + 1]


def _resolved(dotted: str) -> Any:
    if dotted in ("CallbackFeed", "Hooks"):
        return getattr(hf.read if dotted == "CallbackFeed" else hf, dotted)
    first, *rest = dotted.split(".")
    found: Any = hf.Run if first == "run" else _MODULES[first]
    for name in rest:
        found = getattr(found, name)
    return found


def _call_faults(calls: list[str]) -> Iterator[str]:
    for call in calls:
        written = re.sub(r"\{[^}]*\}", "filled", call)
        written = re.sub(r"\.\.\.\.(?=\W|$)", "...", written)
        try:
            tree = ast.parse(written, mode="eval").body
        except SyntaxError:
            # A text in prose, like hf.filter("...") with words filled in: its name at least exists.
            yield from _name_faults(call.partition("(")[0] + " ")
            continue
        assert isinstance(tree, ast.Call)
        name = ast.unparse(tree.func)
        try:
            function = _resolved(name)
        except AttributeError:
            yield f"there is no {name}"
            continue
        if "filled" not in name:
            yield from _misfit(name, function, tree)


def _misfit(name: str, function: Any, call: ast.Call) -> Iterator[str]:
    signature = inspect.signature(function)
    names = [each.arg for each in call.keywords if each.arg != "filled"]
    positions: list[Any] = [None] * len(call.args)
    is_open = None in names or any(
        isinstance(each, ast.Starred) or (isinstance(each, ast.Constant) and each.value is ...) for each in call.args
    )
    if name.startswith("run."):
        positions.insert(0, None)
    if is_open:
        positions = []
    try:
        (signature.bind_partial if is_open or not (positions or names) else signature.bind)(
            *positions, **dict.fromkeys(each for each in names if each)
        )
    except TypeError as error:
        yield f"{ast.unparse(call)}: {error}"


def _name_faults(text: str) -> Iterator[str]:
    for dotted in re.findall(r"(?<![\w./\"'-])((?:hf|read|write)(?:\.[a-z_A-Z]\w*)+)", text):
        try:
            _resolved(dotted)
        except AttributeError:
            yield f"there is no {dotted}"


# --- arguments by their names -----------------------------------------------------------------------------------------


def _public() -> Iterator[Any]:
    for module in (hf, hf.read, hf.write, hf.policy, hf.control, hf.segments, hf.files, hf.testing, flow, calculators):
        for name in dir(module):
            if not name.startswith("_"):
                found = getattr(module, name)
                if not isinstance(found, ModuleType):
                    yield from (each for each in (found, getattr(found, "Options", None)) if callable(each))
    yield start  # the options of Pipeline.run and Pipeline.start
    for owner in (hf.Pipeline, hf.Run, flow.Graph, flow.Run, flow.Context):
        yield from (each for name, each in vars(owner).items() if callable(each) and not name.startswith("_"))


@cache
def arguments() -> dict[str, frozenset[str]]:
    """Return file below ``src/holdfast`` -> the arguments of what is public there."""
    found: dict[str, set[str]] = {}
    for function in _public():
        module = getattr(function, "__module__", None) or ""
        if not module.startswith("holdfast"):
            continue
        try:
            names = inspect.signature(function).parameters
        except ValueError:
            continue
        place = Path(*module.split(".")[1:]).as_posix() + ".py"
        found.setdefault(place, set()).update(names)
    return {place: frozenset(names) for place, names in found.items()}


def _arguments_of(functions: ModuleType) -> set[str]:
    """Return the arguments of all functions of ``hf.read`` or ``hf.write``."""
    return {name for each in functions.__all__ for name in inspect.signature(getattr(functions, each)).parameters}


def _allowed(module: str, text: str) -> set[str]:
    """Return the arguments that an advice of a module may name."""
    every = arguments()
    anywhere = {name for names in every.values() for name in names}
    module = next((place for start, place in _BUILT_IN.items() if module.startswith(start)), module)
    if not module.startswith(ROOMS):
        return anywhere
    if (shared := next((of for start, of in _SHARED.items() if module.startswith(start)), None)) is not None:
        return (
            _arguments_of(shared) | set(every.get(module, ())) | OF_STREAMS | set(inspect.signature(start).parameters)
        )
    here = set(every.get(module, ()))
    room = module.rstrip("/") + "/"
    while not here:
        # What is not public itself is raised for what is public beside it, or above.
        here = {name for place, names in every.items() if place.startswith(room) for name in names}
        room = room[:-1].rpartition("/")[0] + "/"
    if _SOURCE_ARGUMENT.search(text):
        here |= _arguments_of(hf.read)
    return here | OF_STREAMS | set(inspect.signature(start).parameters)


def _argument_faults(module: str, text: str, plain: str) -> Iterator[str]:
    allowed = _allowed(module, text) | _FREE.get(module, set())
    for name in re.findall(r"(?<![\w.{}'\"-])([a-z_]+)=(?!=)", plain):
        if name not in allowed:
            yield f"no argument of {module}: {name}="
