# The public names, and where each is defined: the one list of them (holdfast/later.py reads it).

from holdfast.video.decoding import decode as decode
from holdfast.video.drawing import draw as draw
from holdfast.video.encoding import encode as encode
from holdfast.video.frames import VideoFrame as VideoFrame
from holdfast.video.muxing import demux as demux
from holdfast.video.muxing import mux as mux
from holdfast.video.packets import CodecParameters as CodecParameters
from holdfast.video.packets import EncodedPacket as EncodedPacket
from holdfast.video.packets import message_times as message_times
