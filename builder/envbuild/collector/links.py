"""Paths as the kernel follows them, with a note of every link and folder on the way."""

import os
import stat

_MAX_LINKS = 40  # as the kernel counts them (MAXSYMLINKS)
_MAX_PATH = 4096  # PATH_MAX, in bytes
_MAX_STEPS = 400000
_MAX_ENTRIES = 100000


class Links:
    """A machine's paths.

    Attributes:
        paths: Every link and folder on the way -> its real path; with a slash at its end, a folder that was looked
            into. What holds a key is always a real folder: ``..`` behind a link is the parent of what it leads to.
        full: So many paths were asked for that no more are followed.
    """

    def __init__(self):
        self.paths = {}
        self.full = False
        self._steps = {"": ("", "folder")}
        self._depth = 0

    def file(self, path):
        """The real path of a regular file, or None."""
        real, kind = self._walk(path)
        return real if kind == "file" else None

    def folder(self, path):
        """The real path of a folder, or None."""
        real, kind = self._walk(path)
        return real or "/" if kind == "folder" else None

    def irregular(self, path):
        """The real path of what is there and is no regular file, and what it is: to the loader it is a library."""
        real, kind = self._walk(path)
        return (real or "/", kind) if kind in ("folder", "other") else (None, None)

    def names(self, folder):
        """The names in a real folder; None where it has too many of them, or may be searched and not listed."""
        self.paths[folder.rstrip("/") + "/"] = folder
        found = set()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found.add(entry.name)
                    if len(found) > _MAX_ENTRIES:
                        return None
        except OSError:
            return None
        return found

    def _walk(self, path):
        here, kind = "", "folder"
        if len(path) >= _MAX_PATH:
            return None, None
        for part in path.split("/"):
            if kind != "folder":  # of a slash at the end, and of a dot, too
                return None, None
            if part in ("", "."):
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            here, kind = self._step(here + "/" + part)
        return here, kind

    def _step(self, path):
        """Where one step from a real folder leads, and what is there."""
        if path in self._steps:
            return self._steps[path]
        if len(self._steps) > _MAX_STEPS:
            self.full = True
            return None, None
        self._steps[path] = None, None  # of a link that leads to itself
        found = None, None
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found = self._follow(path, os.readlink(path))
            elif stat.S_ISDIR(mode):
                found = path, "folder"
                self.paths[path] = path
            else:
                found = path, "file" if stat.S_ISREG(mode) else "other"
        except (OSError, ValueError):  # not there, not ours to see, a name with a NUL
            pass
        self._steps[path] = found
        return found

    def _follow(self, path, target):
        if self._depth >= _MAX_LINKS:
            return None, None
        self._depth += 1
        try:
            real, kind = self._walk(target if target.startswith("/") else path.rpartition("/")[0] + "/" + target)
        finally:
            self._depth -= 1
        if kind is not None:
            self.paths[path] = real or "/"
        return real, kind
