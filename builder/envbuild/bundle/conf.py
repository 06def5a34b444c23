"""``bundle.conf``: what the scripts of a bundle have to know, in lines that a shell reads without obeying them."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.bundle.manifest import Manifest
from envbuild.bundle.words import PREFIX


def text(manifest: Manifest) -> bytes:
    """``bundle.conf``, as the scripts read it: a key, a blank, a value; some keys come more than once."""
    return "".join(f"{key} {value}\n" for key, value in _lines(manifest)).encode("ascii")


def _lines(manifest: Manifest) -> Iterable[tuple[str, str | int]]:
    target = manifest.target
    yield "schema", 1
    yield "name", manifest.name
    yield "distro", target.distro
    yield "major", target.major
    if target.releasever is not None:
        yield "releasever", target.releasever
    yield "arch", target.arch
    yield "fips", "yes" if target.fips else "no"
    yield from (("part", part) for part in manifest.parts)
    if (rpms := manifest.rpms) is not None:
        yield from (("root", root) for root in rpms.roots)
        yield from (("module", f"{each.name}:{each.stream} {each.how}") for each in rpms.modules)
        yield "rpm_count", len(rpms.packages)
        yield "rpm_installed_bytes", sum(each.installed_bytes for each in rpms.packages)
    if (wheels := manifest.wheels) is not None:
        yield "python", wheels.python
        if wheels.program is not None:
            yield "python_program", wheels.program
        yield from (("import", each) for each in wheels.imports)
        yield from (("env", f"{key} {value}") for key, value in wheels.env)
        yield "wheels_bytes", sum(each.bytes for each in manifest.of("wheels"))
        if wheels.deepspeed is not None:
            yield "deepspeed", wheels.deepspeed
        # DeepSpeed, and whatever else the row compiles: they want torch when they are built.
        yield from (("source", each.name) for each in wheels.packages if not each.file.endswith(".whl"))
    if (image := manifest.image) is not None:
        yield "image_path", image.path
        yield "image_ref", image.reference
        yield "image_manifest", image.manifest_digest
        yield "image_config", image.config_digest
    if manifest.base is not None:
        yield "base_sums", manifest.base.sums_sha256
    if manifest.accelerator is not None:
        yield "accelerator", manifest.accelerator
    yield "prefix", PREFIX
