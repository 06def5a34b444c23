"""Room on the disks that training and its image write to."""

import json
import os


def disks(host):
    """The folders that are written to, each by its nearest parent that exists."""
    found = [
        ("cache", cache(host)),
        ("temporary", host.environ.get("TMPDIR") or "/tmp"),
        ("images", _images(host)),
    ]
    return [_disk(host, use, path) for use, path in found if path.startswith("/") and "\0" not in path]


def cache(host):
    """Where torch compiles ops into (torch.utils.cpp_extension, _get_build_directory)."""
    base = host.environ.get("XDG_CACHE_HOME") or os.path.join(host.home(), ".cache")
    return host.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(base, "torch_extensions")


def _images(host):
    try:
        said = json.loads(host.text("/etc/docker/daemon.json") or "{}")
        root = said.get("data-root") if isinstance(said, dict) else None
    except (ValueError, RecursionError):
        root = None
    if isinstance(root, str) and root:
        return root
    places = ("/var/lib/docker", "/var/lib/containers")
    return next((place for place in places if host.exists(place)), places[0])


def _disk(host, use, path):
    there = path
    while there != "/" and not host.exists(there):
        there = os.path.dirname(there)
    found = {"use": use, "path": path, "writable": os.access(host.path(there), os.W_OK | os.X_OK)}
    found["writable"] = found["writable"] and os.path.isdir(host.path(there))
    try:
        state = os.statvfs(host.path(there))
        found["free"] = state.f_bavail * state.f_frsize
        # Some file systems count no inodes.
        found["inodes"] = state.f_favail if state.f_files else None
    except OSError:
        found["free"] = None
    return found
