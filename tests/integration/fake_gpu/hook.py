"""A fake nvidia-container-runtime-hook: notes what the engine asked of it, and fails where the file `fail` says so.

dockerd calls it for every container that requests GPUs (moby, daemon/nvidia_linux.go), with the container's state on
stdin (OCI runtime specification, state).
"""

import json
import os
import pathlib
import sys

folder = pathlib.Path(os.environ["FAKE_GPU_DIR"])
state = json.load(sys.stdin)
spec = json.loads(pathlib.Path(state["bundle"], "config.json").read_text())
env = dict(entry.partition("=")[::2] for entry in spec["process"]["env"])
asked = {
    "arguments": sys.argv[1:],
    "devices": env.get("NVIDIA_VISIBLE_DEVICES"),
    "capabilities": env.get("NVIDIA_DRIVER_CAPABILITIES"),
    "program": spec["process"]["args"],
    "user": spec["process"]["user"],
    "read_only": spec["root"].get("readonly", False),
}
with (folder / "asked.jsonl").open("a") as log:
    log.write(json.dumps(asked) + "\n")
if (folder / "fail").exists():
    sys.stderr.write((folder / "fail").read_text())
    sys.exit(1)
