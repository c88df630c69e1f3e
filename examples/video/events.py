"""(a) Source, decode, detect, track, message, event sink.

::

    camera -> decode -> detect -> track -> message -> table
                `-----> rejects --------------------> table
"""

import holdfast as hf
from examples.video import places
from examples.video.detector import detect
from examples.video.messages import message
from examples.video.tracker import Track

graph = hf.flow.Graph("events")
decoded = graph.input("packet", dict) | hf.video.decode()
frame = decoded["frame"]
objects = {"boxes": {"frame": frame} | hf.flow.node(detect)} | hf.flow.node(Track)
graph.output("events", {"frame": frame, "objects": objects} | hf.flow.node(message))
graph.output("rejects", decoded["rejects"])  # damaged packets: the next key frame goes on

made = places.camera("gate") | hf.flow(
    graph, by="stream", outputs={"events": places.EVENT, "rejects": places.REJECT}, name="seen"
)
pipeline = hf.Pipeline(
    "events",
    made["events"] | places.table("events"),
    made["rejects"] | places.table("damaged"),
)

if __name__ == "__main__":
    pipeline.run(checkpoint=places.WORK / "checkpoint" / "events", trigger=hf.available_now())
