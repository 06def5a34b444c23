"""dpkg's database: versions, the MD5 of each file that it unpacked, and every path of a package.

The sums are in ``md5sums`` (dpkg-deb(5)), of configuration files in its status, the paths in ``list``. MD5 is what
there is; against a forger it is as weak as a RECORD that lies in the same image, against everything else it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.errors import EngineError
from envbuild.judge.archive import ImageArchive
from envbuild.judge.installed import Installed, Stated, Version
from envbuild.judge.versions import upstream

STATUS = "var/lib/dpkg/status"
_DIVERSIONS = "var/lib/dpkg/diversions"
_SUMS = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/]+)?\.md5sums")
_LISTS = re.compile(r"var/lib/dpkg/info/[^/]+\.list")
_LINE = re.compile(r"([0-9a-f]{32})\s+(\S.*)")
_CONFIG = re.compile(r"^ /(\S+) ([0-9a-f]{32})$", re.MULTILINE)
_FIELD = re.compile(r"^(Package|Version|Status):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
# Configuration that Python reads at every start; other configuration is there to be changed.
READ_AT_START = re.compile(r"etc/python[\d.]*/")


def wanted(path: str) -> bool:
    """Whether the bytes of a file are needed."""
    return path in (STATUS, _DIVERSIONS) or _SUMS.fullmatch(path) is not None or _LISTS.fullmatch(path) is not None


def installed(image: ImageArchive) -> Installed:
    """What dpkg says of an image; nothing where there is no dpkg. Never raises."""
    problems: list[str] = []
    texts = {path: _text(image, path, problems) for path in sorted(image.entries) if wanted(path)}
    status = texts.get(STATUS, "")
    moved = set(texts.get(_DIVERSIONS, "").splitlines())
    files = {stated.path: stated for stated in _stated(texts, status) if f"/{stated.path}" not in moved}
    owned = {line.strip().lstrip("/") for path, text in texts.items() if _LISTS.fullmatch(path)
             for line in text.splitlines()}  # fmt: skip
    # Before the merge of /lib into /usr/lib a package's list may say the one and mean the other.
    owned |= {f"usr/{path}" for path in owned}
    return Installed(
        versions=dict(_versions(status)), files=tuple(files.values()), owned=frozenset(owned), problems=tuple(problems)
    )


def _versions(status: str) -> Iterator[tuple[str, Version]]:
    for paragraph in status.replace("\r\n", "\n").split("\n\n"):
        fields = dict(reversed(_FIELD.findall(paragraph)))  # the first of a name counts
        name, version = fields.get("Package"), fields.get("Version")
        if name and version and fields.get("Status", "").endswith(" installed"):
            yield name, Version(value=upstream(version), place=f"/{STATUS}")


def _stated(texts: dict[str, str], status: str) -> Iterator[Stated]:
    for path, text in texts.items():
        package = _SUMS.fullmatch(path)
        for line in text.splitlines() if package else ():
            found = _LINE.fullmatch(line)
            if package and found:
                # One that is not there was left out on purpose (documentation) or is missed by who needs it.
                yield Stated(path=found[2].lstrip("/"), package=package[1], digest=bytes.fromhex(found[1]))
    for paragraph in status.split("\n\n"):
        for path, sum_ in _CONFIG.findall(paragraph):
            if READ_AT_START.match(path):
                name = dict(_FIELD.findall(paragraph)).get("Package", "")
                yield Stated(path=path, package=name, digest=bytes.fromhex(sum_))


def _text(image: ImageArchive, path: str, problems: list[str]) -> str:
    try:
        return (image.data(path) or b"").decode("utf-8", "replace")
    except EngineError as error:
        problems.append(error.message)
        return ""
