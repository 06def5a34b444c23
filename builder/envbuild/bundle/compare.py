"""Two bundles next to one another: what somebody who has the one gets with the other. Read from what they say of
themselves; whether that is so says ``verify``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.bundle.manifest import Manifest

Kind = Literal["bundle", "package", "wheel", "image"]
_NEVRA = re.compile(r"(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?P<arch>[^.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference; ``old`` or ``new`` is empty where there is none."""

    kind: Kind
    name: str
    old: str
    new: str

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"kind": self.kind, "name": self.name, "old": self.old or None, "new": self.new or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is different.

    Attributes:
        fresh: Bytes of the new one's files that the old one has not under the same path: what a differential bundle
            carries, but for the small files that every one has.
    """

    changes: tuple[Change, ...]
    fresh: int


def compare(old: Manifest, new: Manifest) -> Compared:
    """What is different in ``new``."""
    known = {file.path: file.sha256 for file in old.files}
    return Compared(
        changes=(
            *_changes("bundle", _claims(old), _claims(new)),
            *_changes("package", _packages(old), _packages(new)),
            *_changes("wheel", _wheels(old), _wheels(new)),
            *_changes("image", _image(old), _image(new)),
        ),
        fresh=sum(file.bytes for file in new.files if known.get(file.path) != file.sha256),
    )


def _changes(kind: Kind, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, ""), new.get(name, "")
        if before != after:
            yield Change(kind=kind, name=name, old=before, new=after)


def _claims(manifest: Manifest) -> dict[str, str]:
    to, rpms, wheels = manifest.target, manifest.rpms, manifest.wheels
    return {
        "name": manifest.name,
        "parts": ", ".join(manifest.parts),
        "for": f"{to.distro} {to.releasever or to.major} {to.arch}{' FIPS' if to.fips else ''}",
        "installs": " ".join(sorted(rpms.roots)) if rpms else "",
        "modules": " ".join(f"{each.name}:{each.stream}" for each in rpms.modules) if rpms else "",
        "keys": " ".join(sorted(each.fingerprint for each in rpms.keys)) if rpms else "",
        "python": wheels.python if wheels else "",
        "deepspeed": (wheels.deepspeed or "") if wheels else "",
    }


def _packages(manifest: Manifest) -> dict[str, str]:
    """Versions by name and architecture; where a bundle has several of one, all of them."""
    found = defaultdict[str, list[str]](list)
    for each in manifest.rpms.packages if manifest.rpms else ():
        match = _NEVRA.fullmatch(each.nevra)
        name, version = (f"{match['name']}.{match['arch']}", match["version"]) if match else (each.nevra, "")
        found[name].append(version)
    return _joined(found)


def _wheels(manifest: Manifest) -> dict[str, str]:
    """Versions by name, with the first digits of the file's sum: DeepSpeed's own wheel may change without one."""
    found = defaultdict[str, list[str]](list)
    for each in manifest.wheels.packages if manifest.wheels else ():
        found[each.name].append(f"{each.version} ({each.sha256[:8]})")
    return _joined(found)


def _image(manifest: Manifest) -> dict[str, str]:
    if (image := manifest.image) is None:
        return {}
    level = image.level.value if image.level else "no evidence"
    return {"image": f"{image.reference} {image.config_digest[:19]} ({level})"}


def _joined(found: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}
