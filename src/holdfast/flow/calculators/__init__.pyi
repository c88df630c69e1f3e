# The public names, and where each is defined: the one list of them (holdfast/later.py reads it).

from holdfast.flow.calculators.gate import Gate as Gate
from holdfast.flow.calculators.limiter import FlowLimiter as FlowLimiter
from holdfast.flow.calculators.loopback import PreviousLoopback as PreviousLoopback
from holdfast.flow.calculators.pass_through import PassThrough as PassThrough
