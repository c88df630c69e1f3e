"""Types of Python UDFs that are written as text, ``@F.udf("double")``, read where no session is there to read them.

PySpark asks the JVM what the text means when the function is declared; the modules of users are loaded before there is
a JVM, and by commands that need none.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.types import ddl

_MODULE = "pyspark.sql.udf"


@contextmanager
def read_without_session() -> Iterator[None]:
    """Let functions that are declared within the block, and with what it imports, have types as text.

    Notes
    -----
    PySpark is not loaded for it: where the block loads it, its class of functions is changed then, and stays so.  With
    a session it does what it did before.
    """
    if _MODULE in sys.modules:
        _change(sys.modules[_MODULE])
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds one module as the others do, and changes it when it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                _change(module)

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def _change(module: Any) -> None:
    """Let ``UserDefinedFunction`` take a type as text without a session.

    Seen in 4.3: the class and its argument ``returnType``, both public.  If they change: start a session before.
    """
    made = module.UserDefinedFunction.__init__
    if hasattr(made, "__wrapped__"):
        return

    @functools.wraps(made)
    def init(self: Any, func: Any, *arguments: Any, **named: Any) -> None:
        if arguments and isinstance(arguments[0], str):
            arguments = (_type_of(arguments[0]), *arguments[1:])
        elif isinstance(named.get("returnType"), str):
            named["returnType"] = _type_of(named["returnType"])
        made(self, func, *arguments, **named)

    module.UserDefinedFunction.__init__ = init


def _type_of(text: str) -> Any:
    from pyspark.sql import SparkSession

    from holdfast.spark import private

    if SparkSession.getActiveSession() is not None:
        return text
    try:
        return private.spark_schema(pa.schema(ddl.fields(f"value {text}")))[0].dataType
    except InvalidPipeline:
        try:
            return private.spark_schema(pa.schema(ddl.fields(text)))  # the columns of a struct
        except InvalidPipeline as error:
            raise InvalidPipeline(
                f"the type {text!r} of a Python UDF is not known.",
                why=error.why,
                do='write for instance @F.udf("double"), or a type of pyspark.sql.types.',
            ) from error
