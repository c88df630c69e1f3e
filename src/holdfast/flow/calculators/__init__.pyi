# The public names, and where each is defined: the one list of them (holdfast/later.py reads it).

from holdfast.flow.calculators.clock_conversion import ClockConversion as ClockConversion
from holdfast.flow.calculators.demux import Demux as Demux
from holdfast.flow.calculators.demux import RoundRobinDemux as RoundRobinDemux
from holdfast.flow.calculators.gate import Gate as Gate
from holdfast.flow.calculators.immediate_mux import ImmediateMux as ImmediateMux
from holdfast.flow.calculators.leap_seconds import LeapSeconds as LeapSeconds
from holdfast.flow.calculators.limiter import FlowLimiter as FlowLimiter
from holdfast.flow.calculators.loopback import PreviousLoopback as PreviousLoopback
from holdfast.flow.calculators.merge import Merge as Merge
from holdfast.flow.calculators.mux import Mux as Mux
from holdfast.flow.calculators.packet_cloner import PacketCloner as PacketCloner
from holdfast.flow.calculators.pass_through import PassThrough as PassThrough
from holdfast.flow.calculators.resampler import PacketResampler as PacketResampler
from holdfast.flow.calculators.side_packet import SidePacketToStream as SidePacketToStream
