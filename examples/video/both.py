"""(c) Events and video of one decode: one coordinator, one epoch, committed at a frame's boundary.

::

    camera -> decode -> detect -> track -> message ---------------> table
                                    `----> draw -> encode -> mux -> byte stream

Whoever looks, at any moment, finds in the table and in the video the same frames: those before pts.
"""

import holdfast as hf
from examples.video import places
from examples.video.detector import detect
from examples.video.messages import message
from examples.video.tracker import Track

graph = hf.flow.Graph("both")
decoded = graph.input("packet", dict) | hf.video.decode()
frame = decoded["frame"]
objects = {"boxes": {"frame": frame} | hf.flow.node(detect)} | hf.flow.node(Track)
graph.output("events", {"frame": frame, "objects": objects} | hf.flow.node(message))
drawn = {"frame": frame, "boxes": objects} | hf.video.draw()
graph.output("video", drawn | hf.video.encode(gop="2 s") | hf.video.mux("mpegts"))

made = places.camera("gate") | hf.flow(
    graph, by="stream", outputs={"events": places.EVENT, "video": places.VIDEO}, name="seen"
)
pipeline = hf.Pipeline(
    "both",
    made["events"] | places.table("both_events"),
    made["video"] | places.video("both_video"),
    commit_at="pts",
)

if __name__ == "__main__":
    pipeline.run(checkpoint=places.WORK / "checkpoint" / "both", trigger=hf.available_now())
