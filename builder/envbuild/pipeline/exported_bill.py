"""What is in a bundle, as a CycloneDX document: its RPM packages, its wheels, its image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

from envbuild import sbom
from envbuild.bundle.rpms import Checked
from envbuild.bundle.sections import Image, Target, Wheels
from envbuild.sbom import Contents, Part, Purl


def bill(
    name: str, created: str, to: Target, *, packages: Sequence[Checked] = (), wheels: Wheels | None = None,
    image: Image | None = None,
) -> bytes:  # fmt: skip
    """The document. What an image is made of is told by a document of its own beside it.

    Args:
        created: The bundle's own time.
        packages: The RPM packages, with what their repositories say of them.
    """
    parts = sorted((*_rpms(packages, to), *_wheels(wheels), *_image(image)), key=lambda part: part.ref)
    listed = json.dumps([(part.ref, part.sha256) for part in parts]).encode()
    return sbom.dump(
        Contents(
            digest=f"sha256:{hashlib.sha256(listed).hexdigest()}", name=name, created=created, parts=tuple(parts),
            properties=(("bundle:distro", _release(to)), ("bundle:architecture", to.arch)),
            kind="file",
        )
    )  # fmt: skip


def _rpms(packages: Sequence[Checked], to: Target) -> Iterator[Part]:
    for each in packages:
        package, nevra = each.package, each.package.nevra
        version = f"{nevra.version}-{nevra.release}"
        epoch = "" if nevra.epoch in ("", "0") else nevra.epoch
        qualifiers = {"arch": nevra.arch, "distro": _release(to), "epoch": epoch,
                      "upstream": package.source_rpm}  # fmt: skip
        yield Part(
            ref=f"rpm:{nevra}", name=nevra.name, version=f"{epoch}:{version}" if epoch else version,
            description=package.summary, publisher=package.vendor,
            purl=Purl(type="rpm", namespace=to.distro, name=nevra.name, version=version, qualifiers=qualifiers),
            licences=(package.licence,) if package.licence else (), sha256=each.sha256,
            properties=tuple(
                (key, value)
                for key, value in (
                    ("rpm:architecture", nevra.arch), ("rpm:source", package.source_rpm),
                    ("rpm:repository", package.repository), ("rpm:module", each.module),
                )
                if value
            ),
        )  # fmt: skip


def _wheels(wheels: Wheels | None) -> Iterator[Part]:
    for each in wheels.packages if wheels is not None else ():
        yield Part(
            ref=f"pypi:{each.name}", name=each.name, version=each.version,
            purl=Purl(type="pypi", name=each.name, version=each.version), sha256=each.sha256, places=(f"/{each.file}",),
        )  # fmt: skip


def _image(image: Image | None) -> Iterator[Part]:
    if image is not None:
        yield Part(
            ref="image", kind="container", name=image.reference, version=image.config_digest,
            sha256=image.manifest_digest.removeprefix("sha256:"), places=(f"/{image.path}",),
        )  # fmt: skip


def _release(to: Target) -> str:
    return f"{to.distro}-{to.releasever or to.major}"
