"""Bundles as people read about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.bundle.inspect import Inspected
    from envbuild.bundle.verify import Verified
    from envbuild.pipeline.export import Exported
    from envbuild.pipeline.exported_writing import Planned


def print_planned(planned: Planned, *, json: bool) -> None:
    """What an export would write."""
    if json:
        output.document("export", plan=planned.as_dict(), findings=output.documents(planned.findings))
        return
    from envbuild.pipeline.exported_wheels import size_of
    from envbuild.pipeline.sizes import format_size

    to = planned.to
    rows = [
        ("bundle", f"{planned.env.name} ({', '.join(planned.parts)})"),
        ("for", f"{to.distro} {to.releasever or to.major} on {to.arch}{', FIPS mode' if to.fips else ''}"),
        ("created", planned.created),
    ]
    total = 0
    if (packages := planned.packages) is not None:
        total += packages.bytes
        size = f"{format_size(packages.bytes)}, installed {format_size(packages.installed_bytes)}"
        rows.append(("rpms", f"{len(packages.packages)} packages, {size}"))
        rows += [("", f"{'an empty system' if each.target.empty else each.target.name}: {len(each.installs)} packages")
                 for each in packages.closures]  # fmt: skip
        rows += [("repository", f"{each.id}  {each.url}") for each in packages.repositories]
    if (chosen := planned.wheels) is not None:
        total += chosen.bytes
        rows.append(("wheels", f"{len(chosen.choices)} files, {format_size(chosen.bytes)} as far as indexes say"))
        rows += [("", f"{', '.join(chosen.compiled)}: as the image has compiled it")] if chosen.compiled else []
    if planned.image is not None and "image" in planned.parts:
        total += planned.image.size
        rows.append(
            ("image", f"{planned.image.reference} ({planned.image.level.value}), {format_size(planned.image.size)}")
        )
    rows.append(("altogether", f"about {format_size(total)}"))
    output.pairs(rows)
    for package in packages.packages if packages is not None else ():
        output.text(f"  {package.nevra}  {format_size(package.bytes)}  {package.repository}")
    for choice in chosen.choices if chosen is not None else ():
        if choice.file is not None:
            size = f"  {format_size(count)}" if (count := size_of(choice)) else ""
            output.text(f"  {choice.file.filename}{size}")
    output.findings(planned.findings)


def print_exported(done: Exported, *, json: bool, quiet: bool) -> None:
    """What an export has written."""
    if json:
        output.document("export", bundle=done.as_dict(), findings=output.documents(done.findings))
        return
    from envbuild.pipeline.sizes import format_size

    output.findings(done.findings)
    rows = [
        ("bundle", f"{done.folder} ({', '.join(done.manifest.parts)})"),
        ("files", f"{len(done.manifest.files)}, {format_size(done.bytes)}"),
        ("signed by", done.signer or "nobody"),
        *(("volume", str(path)) for path in done.volumes),
    ]
    output.pairs(rows)
    if quiet:
        return
    if done.signer:
        output.narrate("tell whoever installs it the fingerprint on another way than the bundle goes; there:")
        output.narrate(f"sh install.sh --fingerprint {done.signer} --dry-run")
    else:
        output.narrate("NOT SIGNED: install.sh refuses it, unless it is told --insecure-no-signature")


def print_inspected(found: Inspected) -> None:
    """What a bundle says of itself."""
    from envbuild.pipeline.sizes import format_size

    rows: list[tuple[str, str]] = []
    if (volume := found.volume) is not None:
        rows.append(("volume", f"{volume.number} of {volume.of}, with {volume.files} files; put together: assemble.sh"))
    if (manifest := found.manifest) is not None:
        to = manifest.target
        rows += [
            ("bundle", manifest.name),
            ("for", f"{to.distro} {to.releasever or to.major} on {to.arch}{', FIPS mode' if to.fips else ''}"),
            ("created", f"{manifest.created} by envbuild {manifest.envbuild}"),
            *((part, format_size(size)) for part, size in found.sizes.items()),
        ]
        if manifest.rpms is not None:
            rows.append(("installs", " ".join(manifest.rpms.roots)))
            rows += [("", f"{each.name}: {len(each.installs)} packages") for each in manifest.rpms.targets]
        if manifest.wheels is not None:
            rows.append(("python", f"{manifest.wheels.python}, {len(manifest.wheels.packages)} packages; DeepSpeed: "
                                   f"{manifest.wheels.deepspeed or 'none'}"))  # fmt: skip
        if manifest.image is not None:
            level = manifest.image.level.value if manifest.image.level else "no evidence"
            rows.append(("image is", f"{manifest.image.reference} ({level})"))
        if manifest.base is not None:
            rows.append(("stands on", f"{manifest.base.name}, SHA256SUMS {manifest.base.sums_sha256}"))
    signed = "yes, by whom says envbuild verify" if found.signed else "no"
    rows += [("files", str(found.files)), ("signed", signed), ("identity", found.sums)]
    output.pairs(rows)


def verified(found: Verified) -> dict[str, Any]:
    """What was seen of a bundle, for ``--json``."""
    return {
        "folder": str(found.folder),
        "good": found.good,
        "name": found.manifest.name if found.manifest else None,
        "fingerprint": found.signer or None,
        "provenance_key": found.key.id if found.key else None,
        "evidence": None if found.shown.level is None else {
            "level": found.shown.level.value, "key": found.shown.key.id if found.shown.key else None,
        },
        "files": found.files,
        "bytes": found.bytes,
        "volume": None if found.volume is None else {"number": found.volume.number, "of": found.volume.of},
    }  # fmt: skip


def print_verified(found: Verified) -> None:
    """What was seen of a bundle."""
    from envbuild.pipeline.findings import errors
    from envbuild.pipeline.sizes import format_size

    rows = [("signed by", found.signer or "nobody whose signature is good")]
    if found.key is not None:
        rows.append(("provenance", f"signed by key {found.key.id[:12]}"))
    if (level := found.shown.level) is not None:
        key = found.shown.key
        whose = f"signed by key {key.id[:12]}" if key else "by whom was not looked at: no key is trusted here"
        rows.append(("image", f"evidence shows level {level.value}, {whose}"))
    rows.append(("read", f"{found.files} files, {format_size(found.bytes)}"))
    if found.volume is not None:
        rows.append(("volume", f"{found.volume.number} of {found.volume.of}: of the others nothing was looked at"))
    output.pairs(rows)
    output.findings(found.findings)
    count = len(errors(found.findings))
    output.text(f"{found.folder}: " + ("verified" if found.good else f"not verified: {count} error{'s'[: count != 1]}"))
