"""(d) Cameras of unlike pace around one detector, and two whose output needs both.

Each pipeline has a coordinator and a pts of its own.  All of them ask one shared detector, in batches of frames of any
camera; there is no other tie between them.

::

    gate  -> decode -> detector --> track -> message, draw -> encode -> mux --> gate_events, gate
    left  -> decode -> detector --> track -> message, draw -> encode -> mux --> left_events, left

    left  -> decode -> detector -.
    right -> decode -> detector --> both -> message, encode -> mux --> pair_events, pair
"""

import holdfast as hf
from examples.video import places
from examples.video.detector import detect_together
from examples.video.messages import message, message_of_both, side_by_side
from examples.video.tracker import Track

OUTPUTS = {"events": places.EVENT, "video": places.VIDEO}


def one_camera() -> hf.flow.Graph:
    """Return what becomes of one camera's packets."""
    graph = hf.flow.Graph("camera")
    frame = (graph.input("packet", dict) | hf.video.decode())["frame"]
    objects = {"boxes": {"frame": frame} | hf.flow.node(detect_together)} | hf.flow.node(Track)
    graph.output("events", {"frame": frame, "objects": objects} | hf.flow.node(message))
    drawn = {"frame": frame, "boxes": objects} | hf.video.draw()
    graph.output("video", drawn | hf.video.encode(gop="2 s") | hf.video.mux("mpegts"))
    return graph


def two_cameras() -> hf.flow.Graph:
    """Return what becomes of the packets of two: there is a row where both have a frame, and only there."""
    graph = hf.flow.Graph("pair")
    frames, boxes = {}, {}
    for side in ("left", "right"):
        frames[side] = (graph.input(side, dict) | hf.video.decode(name=f"decode_{side}"))["frame"]
        boxes[f"{side}_boxes"] = {"frame": frames[side]} | hf.flow.node(detect_together, name=f"detect_{side}")
    both = frames | hf.flow.node(side_by_side, policy=hf.policy.settled())
    told = {"left": frames["left"], **boxes} | hf.flow.node(message_of_both, policy=hf.policy.settled())
    graph.output("events", told)
    graph.output("video", both | hf.video.encode(gop="2 s") | hf.video.mux("mpegts"))
    return graph


def written(name: str, made) -> hf.Pipeline:
    """Return the pipeline that writes one stream of events and one video."""
    return hf.Pipeline(
        name, made["events"] | places.table(f"{name}_events"), made["video"] | places.video(f"{name}_video")
    )


def of_pair(side: str) -> hf.Stream:
    """Read one of two cameras that are one key."""
    packets = places.camera(side)
    return packets | hf.select("'pair' AS stream", "timestamp", "is_key", "data", name=f"{side}_packets")


gate = written("gate", places.camera("gate") | hf.flow(one_camera(), by="stream", outputs=OUTPUTS, name="seen"))
left = written("left", places.camera("left") | hf.flow(one_camera(), by="stream", outputs=OUTPUTS, name="seen"))
sides = {side: of_pair(side) for side in ("left", "right")}
pair = written("pair", hf.flow(sides, two_cameras(), by="stream", outputs=OUTPUTS, name="seen"))

if __name__ == "__main__":
    for run in hf.start_all([gate, left, pair], checkpoint=places.WORK / "checkpoint", trigger=hf.available_now()):
        run.wait()
