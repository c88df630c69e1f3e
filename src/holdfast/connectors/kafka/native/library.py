"""The functions of librdkafka that confluent-kafka does not offer, from the very library that it has loaded.

They are those of its documented interface (``rdkafka.h``): a client is made with the same settings, TLS and SASL as
those of confluent-kafka, and its errors are that library's.  Sizes and layouts are those of 64-bit addresses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, cimpl

from holdfast.connectors.kafka import codes

pointer, size_t, c_int, c_int32, c_int64 = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int32,
    ctypes.c_int64,
)
text = ctypes.c_char_p

_waits = ctypes.CDLL(cimpl.__file__)
"""Its functions, while other threads go on: found among what confluent-kafka's own module needs."""

_quick = ctypes.PyDLL(cimpl.__file__)
"""The same for what is over at once: to let other threads go on costs more."""

WORD = 8
LOW = 1 << 12


def quick(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function that is over at once."""
    return _typed(_quick, name, result, arguments)


def waits(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function during which other threads of Python's go on."""
    return _typed(_waits, name, result, arguments)


def newer(kind: Callable[..., Any], name: str, result: Any, *arguments: Any) -> Any:
    """Return a function, :func:`quick` or one that :func:`waits`; None where the library is older than it."""
    return kind(name, result, *arguments) if hasattr(_quick, name) else None


def _typed(library: Any, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


class _Memory:
    """All of a process's memory but its first page, as words: of many addresses at a time what stands there."""

    __array_interface__ = {"data": (LOW, True), "shape": (1 << 53,), "typestr": "<i8", "version": 3}  # noqa: RUF012


_memory = np.asarray(_Memory())


def words(addresses: np.ndarray) -> np.ndarray:
    """Return the words at addresses, which must be those of words of this process."""
    found: np.ndarray = _memory[(addresses - LOW) >> 3]
    return found


# --- errors -----------------------------------------------------------------------------------------------------------

_error_code = quick("rd_kafka_error_code", c_int, pointer)
_error_text = quick("rd_kafka_error_string", text, pointer)
_error_flags = tuple(
    quick(f"rd_kafka_error_{name}", c_int, pointer) for name in ("is_fatal", "is_retriable", "txn_requires_abort")
)
_error_destroy = quick("rd_kafka_error_destroy", None, pointer)


def error_of(error: int) -> KafkaError:
    """Return what a function has answered, which is let go."""
    said = (_error_text(error) or b"").decode(errors="replace")
    made = KafkaError(_error_code(error), said, *(bool(flag(error)) for flag in _error_flags))
    _error_destroy(error)
    return made


def check(error: int | None) -> None:
    """Raise what a function has answered, if it is an error."""
    if error is not None:
        raise KafkaException(error_of(error))


# --- clients ----------------------------------------------------------------------------------------------------------

_conf_new = quick("rd_kafka_conf_new", pointer)
_conf_set = quick("rd_kafka_conf_set", c_int, pointer, text, text, text, size_t)
_conf_destroy = quick("rd_kafka_conf_destroy", None, pointer)
_ON_ERROR = ctypes.CFUNCTYPE(None, pointer, c_int, text, pointer)
_conf_error_cb = quick("rd_kafka_conf_set_error_cb", None, pointer, _ON_ERROR)
_ON_REPORT = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)
_conf_report_cb = quick("rd_kafka_conf_set_dr_msg_cb", None, pointer, _ON_REPORT)
_new = waits("rd_kafka_new", pointer, c_int, pointer, text, size_t)
_destroy = waits("rd_kafka_destroy", None, pointer)

PRODUCER, CONSUMER = 0, 1
_REASON_BYTES = 512


class Hold:
    """What keeps a handle of librdkafka's: its client, and what that has given out.

    Python finalizes what belongs to a cycle in any order, and librdkafka waits for ever for a message that is let go
    after the handle.
    """

    _is_finalizing = staticmethod(sys.is_finalizing)
    """Kept here: where the interpreter ends, a module's names can be gone before its objects are."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        self._count = 1

    def add(self, count: int) -> None:
        """Count something that was given out."""
        self._count += count

    def remove(self, count: int) -> None:
        """Count what is let go; the last takes the handle with it."""
        self._count -= count
        if self._count == 0 and self._handle is not None and not self._is_finalizing():
            handle, self._handle = self._handle, None
            _destroy(handle)


class Client:
    """A client of librdkafka's; let go with this object.

    Parameters
    ----------
    kind : int
        :data:`PRODUCER` or :data:`CONSUMER`.
    settings : mapping of str to object
        As confluent-kafka takes them; of functions ``error_cb`` alone.
    on_report : callable, optional
        Called with the address of each message that is reported: those that were not delivered.

    Raises
    ------
    KafkaException
        If a setting is none, or the client cannot be made with them.
    """

    def __init__(self, kind: int, settings: Mapping[str, Any], on_report: Callable[[int], None] | None = None) -> None:
        self.hold: Hold | None = None
        conf = _conf_new()
        try:
            for name, value in settings.items():
                if name != "error_cb":
                    said = str(value).lower() if isinstance(value, bool) else str(value)
                    self._set(conf, name, said)
            # NB librdkafka calls these as long as the client is there
            self._on_error = _ON_ERROR(_told(settings["error_cb"])) if "error_cb" in settings else None
            self._on_report = _ON_REPORT(lambda _, message, __: on_report(message)) if on_report else None
            if self._on_error is not None:
                _conf_error_cb(conf, self._on_error)
            if self._on_report is not None:
                _conf_report_cb(conf, self._on_report)
            reason = ctypes.create_string_buffer(_REASON_BYTES)
            handle = _new(kind, conf, reason, _REASON_BYTES)
            if handle is None:
                raise KafkaException(KafkaError(codes.INVALID_ARG, reason.value.decode(errors="replace")))
        except BaseException:
            _conf_destroy(conf)
            raise
        self.handle = int(handle)
        self.hold = Hold(self.handle)

    def __del__(self) -> None:
        """Let it go; what it has not sent is lost, and its transaction stays as it is."""
        if self.hold is not None:
            self.hold.remove(1)

    @staticmethod
    def _set(conf: int, name: str, value: str) -> None:
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        if _conf_set(conf, name.encode(), value.encode(), reason, _REASON_BYTES) != 0:
            raise KafkaException(KafkaError(codes.INVALID_ARG, reason.value.decode(errors="replace")))


def _told(error_cb: Callable[[KafkaError], None]) -> Callable[..., None]:
    def tell(_: int, code: int, reason: bytes | None, __: int) -> None:
        error_cb(KafkaError(code, (reason or b"").decode(errors="replace")))

    return tell
