"""What a calculator is, and what it declares of itself: inputs, outputs, policy, timestamp offset, options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from holdfast.errors import InvalidPipeline
from holdfast.flow.context import Context
from holdfast.flow.policies import Declared, Policy, identity_of
from holdfast.flow.queues import Payload, Types

Saved = Mapping[str, Payload]
"""The state of a calculator: name -> a value that Arrow knows, or bytes."""

Ports = Mapping[str, Types] | Sequence[str]
"""As they are declared: port -> types, or ports of any type; one is a text."""


class Stop:
    """The type of :data:`STOP`."""

    def __repr__(self) -> str:
        return "STOP"


STOP = Stop()
"""What ``process`` returns where nothing follows: of a source, its end; of another calculator, that of all sources."""


@dataclass(frozen=True, init=False)
class Contract:
    """What a calculator promises and needs.

    Parameters
    ----------
    inputs, outputs : mapping of str to type, or sequence of str
        Port -> type of its payloads, several types, or None for any.  A calculator without inputs is a source.
    side_inputs : mapping of str to type, or sequence of str
        What it is given once, before it opens: a model, a calibration.
    policy : policy, or subclass of Policy, optional
        Which packets are an input set: one of ``hf.policy`` (``settled`` by default), or a policy of one's own.
    timestamp_offset : int, optional
        A promise: what leaves for an input set at ``t`` has the time ``t + timestamp_offset`` or later.  So the
        calculators behind this one know what is settled although nothing left.  None: no promise.
    process_timestamp_bounds : bool
        Whether ``process`` is called also for times that are settled without a packet.
    batch_size : int
        How many input sets are gathered before they are processed, back to back.
    max_in_flight : int
        How many input sets may be processed at a time, where there are threads.  What leaves keeps the order of time.
    is_pure : bool
        Whether nothing is kept between calls: then there is no state to save.
    reads_clock : bool
        Whether what leaves depends on real time: :meth:`Context.now`.
    replay_from : str
        Name of an attribute or key of a payload, true for packets from which on all can be made again: a key frame.
        The state then is the packets since the last of these, which are processed again, their outputs muted.  Calls
        without packets are not repeated, so they must change nothing that is kept.
    replay_marks : int
        From the how-manieth last of these: 2, where a group of pictures needs the one before it.
    """

    inputs: Mapping[str, Types]
    outputs: Mapping[str, Types]
    side_inputs: Mapping[str, Types]
    policy: Declared | type[Policy] | None
    timestamp_offset: int | None
    process_timestamp_bounds: bool
    batch_size: int
    max_in_flight: int
    is_pure: bool
    reads_clock: bool
    replay_from: str
    replay_marks: int

    def __init__(
        self,
        inputs: Ports = (),
        outputs: Ports = (),
        side_inputs: Ports = (),
        policy: Declared | type[Policy] | None = None,
        timestamp_offset: int | None = None,
        process_timestamp_bounds: bool = False,
        batch_size: int = 1,
        max_in_flight: int = 1,
        is_pure: bool = False,
        reads_clock: bool = False,
        replay_from: str = "",
        replay_marks: int = 1,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        for name, value in given.items():
            object.__setattr__(self, name, _ports(value, name) if name.endswith("puts") else value)
        for name in ("batch_size", "max_in_flight", "replay_marks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidPipeline(
                    f"{name}={value!r} of a contract is no number of input sets.",
                    why="it counts from one.",
                    do=f"write {name}=1, or more.",
                )


def _ports(given: object, what: str) -> dict[str, Types]:
    if isinstance(given, str):
        given = (given,)
    ports = dict(given) if isinstance(given, Mapping) else dict.fromkeys(cast("Sequence[str]", given))
    ports = {name: None if types is Any else types for name, types in ports.items()}
    for name, types in ports.items():
        is_type = types is None or isinstance(types, type) or (isinstance(types, tuple) and bool(types))
        if not isinstance(name, str) or not name.isidentifier() or not is_type:
            raise InvalidPipeline(
                f"{what} of a contract has {name!r}: {types!r}.",
                why="a port has a name that is an identifier, and a type, several types, or None for any.",
                do='write for instance inputs={"frame": bytes, "boxes": list}.',
            )
    return ports


class Calculator:
    """A node of a flowgraph: subclass it, declare ``contract``, and write ``process``.

    Each run has an instance of its own, made with the options of the node; attributes are its state.

    Parameters
    ----------
    options : object, optional
        What the node was declared with: an instance of ``Options``, where the class has one.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> class Threshold(Calculator):
    ...     contract = Contract(inputs={"value": float}, outputs={"high": float}, timestamp_offset=0, is_pure=True)
    ...     @dataclass(frozen=True)
    ...     class Options:
    ...         level: float = 0.5
    ...     def process(self, context):
    ...         if context["value"] > self.options.level:
    ...             context.emit("high", context["value"])
    """

    contract: ClassVar[Contract] = Contract()
    Options: ClassVar[Any] = None
    identity: ClassVar[str] = ""
    """By what a checkpoint knows the class, which is ``module.Class`` without it: what that was before the code moved.

    It is that of the class that declares it, and not of its subclasses.
    """

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def open(self, context: Context) -> None:
        """Begin: called once, before the first input set."""

    def process(self, context: Context) -> Stop | None:
        """Process an input set; of a source, make the next packets.

        Returns
        -------
        STOP or None
            STOP where nothing follows.
        """
        raise NotImplementedError

    def close(self, context: Context) -> None:
        """End: called once, after the last input set; packets that are sent here need a time."""

    def save(self) -> Saved | None:
        """Return the state: values that Arrow knows, or bytes.  None: the calculator cannot."""
        return {} if self.contract_of(self.options).is_pure else None

    def restore(self, saved: Saved) -> None:
        """Take a state that ``save`` gave; called after ``open``."""

    @classmethod
    def contract_of(cls, options: Any) -> Contract:
        """Return the contract for options, where ports or policy depend on them; the class's own by default."""
        return cls.contract


@dataclass(frozen=True)
class Kind:
    """A kind of calculator: how one is made, and what it declares.

    Parameters
    ----------
    name : str
        For messages, and the nodes' names.
    calculator : type or Function
        What is made.
    options : object
        What it is made with.
    contract : Contract
        What it declares.
    """

    name: str
    calculator: type[Calculator] | Function
    options: object
    contract: Contract

    def make(self) -> Calculator:
        """Return a new one."""
        if isinstance(self.calculator, Function):
            return FunctionCalculator(self.calculator)
        return self.calculator(self.options)

    @property
    def identity(self) -> str:
        """What it is, by which a checkpoint knows it."""
        if isinstance(self.calculator, Function):
            return f"function {self.name}"
        return identity_of(self.calculator)


def kind_of(calculator: object, options: object = None) -> Kind:
    """Return the kind of a calculator: of a class with options, or of a plain function.

    Raises
    ------
    InvalidPipeline
        If it is neither, or the options are not its own.
    """
    if isinstance(calculator, type) and issubclass(calculator, Calculator):
        options = _options(calculator, options)
        return Kind(_snake(calculator.__name__), calculator, options, calculator.contract_of(options))
    if isinstance(calculator, Function) and options is None:
        return Kind(calculator.name, calculator, None, calculator.contract)
    if callable(calculator) and not isinstance(calculator, type) and options is None:
        return kind_of(function(calculator))
    raise InvalidPipeline(
        f"{calculator!r} is no calculator{' with options' if options is not None else ''}.",
        why="a node is a subclass of hf.flow.Calculator, with options of its own where it has some, or a function.",
        do="write for instance hf.flow.node(Detect, Detect.Options(threshold=0.3)), or hf.flow.node(grey).",
    )


def _options(calculator: type[Calculator], options: object) -> object:
    declared = calculator.Options
    if declared is None:
        if options is not None:
            raise InvalidPipeline(
                f"Calculator {calculator.__name__} takes no options, and {options!r} was given.",
                do="leave them out, or declare a frozen dataclass Options in the class.",
            )
        return None
    if options is None:
        try:
            return declared()
        except TypeError as error:
            raise InvalidPipeline(
                f"Calculator {calculator.__name__} needs options: {error}.",
                do=f"write hf.flow.node({calculator.__name__}, {calculator.__name__}.Options(...)).",
            ) from None
    if not isinstance(options, declared):
        raise InvalidPipeline(
            f"{options!r} are no options of calculator {calculator.__name__}.",
            do=f"write hf.flow.node({calculator.__name__}, {calculator.__name__}.Options(...)).",
        )
    return options


@dataclass(frozen=True)
class Function:
    """A function as a calculator: it is called with the payloads of an input set, and returns the output's."""

    call: Callable[..., Payload]
    name: str
    contract: Contract
    defaults: Mapping[str, Payload]


def function(
    call: Callable[..., Payload] | None = None,
    *,
    outputs: Ports | None = None,
    inputs: Ports = (),
    name: str | None = None,
    **contract: Any,
) -> Any:
    """Make a calculator of a function; a decorator, too.

    Parameters
    ----------
    call : callable
        Its parameters are the inputs; one with a default value gets that where an input set has no packet for it, and
        without one the function is not called.  What it returns leaves at the time of the input set: with several
        outputs a mapping of output to payload.  None, or an output that the mapping lacks: no packet.
    outputs : mapping, sequence of str or str, optional
        The outputs; the function's name by default.
    inputs : mapping or sequence of str, optional
        Types of the inputs; from the annotations by default, where these are types.
    name : str, optional
        Of the calculator; the function's by default.
    **contract
        Further parts of the :class:`Contract`.  By default it has no state and the timestamp offset 0.

    Raises
    ------
    InvalidPipeline
        If the function has parameters that are no inputs.

    Examples
    --------
    >>> @function(outputs="sum")
    ... def add(left: int, right: int = 0):
    ...     return left + right
    >>> add.contract.outputs
    {'sum': None}
    """
    if call is None:
        return lambda decorated: function(decorated, outputs=outputs, inputs=inputs, name=name, **contract)
    own = str(name or getattr(call, "__name__", type(call).__name__))
    parameters = inspect.signature(call, eval_str=False).parameters.values()
    if any(each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in parameters):
        raise InvalidPipeline(
            f"Function {own!r} cannot be a calculator.",
            why="it has parameters without a name of their own, and each parameter is an input.",
            do="name the inputs: def both(left, right): ...",
        )
    annotations = _annotations(call)
    found: dict[str, Types] = {each.name: annotations.get(each.name) for each in parameters}
    found.update(_ports(inputs, "inputs"))
    declared = Contract(
        inputs=found,
        outputs=outputs if outputs is not None else (own if own.isidentifier() else "out",),
        timestamp_offset=0,
        is_pure=True,
    )
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    return Function(call, own, replace(declared, **contract), defaults)


def _annotations(call: Callable[..., Payload]) -> dict[str, type]:
    """Return the annotations that are types; also where they are texts (``from __future__ import annotations``)."""
    try:
        found = inspect.get_annotations(call, eval_str=True)
    except (TypeError, NameError, AttributeError, SyntaxError):  # no function, or a name of its typing only
        return {}
    return {name: each for name, each in found.items() if isinstance(each, type)}


class FunctionCalculator(Calculator):
    """What calls a function for each input set."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._call = function.call
        self._defaults = dict(function.defaults)
        self._inputs = tuple(function.contract.inputs)
        self._outputs = tuple(function.contract.outputs)
        self._is_pure = function.contract.is_pure

    def process(self, context: Context) -> Stop | None:
        """Call the function, where it has what it needs."""
        found = {**self._defaults, **context.payloads()}
        if len(found) < len(self._inputs):
            return None
        result = self._call(**found)
        if result is None:
            return None
        if isinstance(result, Stop):
            return result
        if len(self._outputs) == 1:
            context.emit(self._outputs[0], result)
            return None
        for name, value in result.items():
            if value is not None:
                context.emit(name, value)
        return None

    def save(self) -> Saved | None:
        """Return nothing where the function keeps nothing: it does not by default."""
        return {} if self._is_pure else None


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() and place else each.lower() for place, each in enumerate(name))
