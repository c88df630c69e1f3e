"""(b) Source, decode, detect, draw, encode, mux, byte stream: the camera's video with boxes and numbers in it.

::

    camera -> decode -> detect -> track -> draw -> encode -> mux -> byte stream
"""

import holdfast as hf
from examples.video import places
from examples.video.detector import detect
from examples.video.tracker import Track

graph = hf.flow.Graph("annotate")
decoded = graph.input("packet", dict) | hf.video.decode()
frame = decoded["frame"]
objects = {"boxes": {"frame": frame} | hf.flow.node(detect)} | hf.flow.node(Track)
drawn = {"frame": frame, "boxes": objects} | hf.video.draw()
graph.output("video", drawn | hf.video.encode(gop="2 s") | hf.video.mux("mpegts"))

made = places.camera("gate") | hf.flow(graph, by="stream", schema=places.VIDEO, name="drawn")
pipeline = hf.Pipeline("annotate", made | places.video("annotated"))

if __name__ == "__main__":
    pipeline.run(checkpoint=places.WORK / "checkpoint" / "annotate", trigger=hf.available_now())
