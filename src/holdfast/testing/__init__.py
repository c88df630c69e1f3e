"""Kit for tests, shipped for users: graphs driven without Spark; drivers that die, sinks that break, and an auditor.

Where to begin: :func:`drive` for a graph, ``step_contract`` for a step of your own,
:func:`flow_contract` for calculators, :func:`kill_run` for a run that dies, :func:`play` for a scenario,
:func:`crash_loop` for a sink of your own, :func:`simulate` for seeds.
"""

from holdfast.testing import step_contract
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.crash_loop import CrashLoopReport, crash_loop
from holdfast.testing.drive import drive
from holdfast.testing.failures import Failure, Failures, NoFailures, ScriptedFailures, SeededFailures
from holdfast.testing.faulty_sink import FaultySink
from holdfast.testing.flow_contract import flow_contract
from holdfast.testing.given import bound, close, malformed
from holdfast.testing.killed_run import finish_run, kill_run
from holdfast.testing.simulation.engine import EngineConflict, Load, SimulatedEngine
from holdfast.testing.simulation.process import Baton, CrashAt, Ending, Process, SimulatedCrash, SteppedLane
from holdfast.testing.simulation.rows import SCHEMA, audit_rows, audit_values
from holdfast.testing.simulation.scenario import (
    Action,
    Crash,
    Damage,
    Drain,
    Expect,
    Fails,
    GoesBack,
    Restart,
    Rows,
    Scene,
    Stop,
    play,
    sinks,
)
from holdfast.testing.simulation.seeds import SeedReport, simulate
from holdfast.testing.simulation.tasks import Workers
from holdfast.testing.simulation.world import PIPELINE, Life, Setting, SinkUnderTest, World, real_sink, simulated_sink
from holdfast.testing.sink import SimulatedSink, SimulatedTarget
from holdfast.testing.stand_in import StandIn
from holdfast.testing.store import FaultyStore, SimulatedStore

__all__ = [
    "PIPELINE",
    "SCHEMA",
    "Action",
    "Baton",
    "Crash",
    "CrashAt",
    "CrashLoopReport",
    "Damage",
    "Drain",
    "Ending",
    "EngineConflict",
    "Expect",
    "Failure",
    "Failures",
    "Fails",
    "FaultySink",
    "FaultyStore",
    "GoesBack",
    "Life",
    "Load",
    "NoFailures",
    "Process",
    "Restart",
    "Rows",
    "ScriptedFailures",
    "SeedReport",
    "SeededFailures",
    "Setting",
    "SimulatedClock",
    "SimulatedCrash",
    "SimulatedEngine",
    "SimulatedSink",
    "SimulatedStore",
    "SimulatedTarget",
    "SinkUnderTest",
    "Scene",
    "StandIn",
    "SteppedLane",
    "Stop",
    "Workers",
    "World",
    "audit_rows",
    "audit_values",
    "bound",
    "close",
    "crash_loop",
    "drive",
    "finish_run",
    "flow_contract",
    "kill_run",
    "malformed",
    "play",
    "real_sink",
    "simulate",
    "simulated_sink",
    "sinks",
    "step_contract",
]
