"""Bundles as people read about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envbuild.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.bundle.compare import Compared
    from envbuild.bundle.inspect import Inspected
    from envbuild.bundle.manifest import Manifest
    from envbuild.bundle.sections import Target
    from envbuild.bundle.verify import Verified
    from envbuild.pipeline.export import Exported
    from envbuild.pipeline.exported_writing import Planned


def print_planned(planned: Planned, *, signed: bool, json: bool) -> None:
    """What an export would write."""
    from envbuild.pipeline.exported_parts import not_signed

    findings = (*planned.findings, *(() if signed else not_signed()))
    if json:
        output.document("export", plan=planned.as_dict(), findings=output.documents(findings))
        return
    from envbuild.pipeline.exported_wheels import size_of
    from envbuild.pipeline.sizes import format_media

    rows = [
        ("bundle", f"{planned.name} ({', '.join(planned.parts)})"),
        *((("row", planned.env.name),) if planned.name != planned.env.name else ()),
        ("for", _target(planned.to)),
        ("created", _moment(planned.created)),
    ]
    if (packages := planned.packages) is not None:
        size = f"{format_media(packages.bytes)}, installed {format_media(packages.installed_bytes)}"
        rows.append(("rpms", f"{_count(len(packages.packages), 'package')}, {size}"))
        rows += [("", f"{'an empty system' if each.target.empty else each.target.name}: "
                      f"{_count(len(each.installs), 'package')}") for each in packages.closures]  # fmt: skip
        rows += [("repository", f"{each.id}  {each.url}") for each in packages.repositories]
    if (chosen := planned.wheels) is not None:
        rows.append(
            ("wheels", f"{_count(len(chosen.choices), 'file')}, {format_media(chosen.bytes)} as far as indexes say")
        )
        rows += [("", f"{', '.join(chosen.compiled)}: as the image has compiled it")] if chosen.compiled else []
    if planned.image is not None and "image" in planned.parts:
        rows.append(
            ("image", f"{planned.image.reference} ({planned.image.level.value}), {format_media(planned.image.size)}")
        )
    total = planned.bytes
    rows.append(("altogether", f"about {format_media(total)}"))
    if planned.base is not None:
        total = planned.carried_bytes
        rows.append(("to carry", f"about {format_media(total)}: {planned.base.base.name} has the rest"))
    if planned.wish.volume is not None:
        rows.append(("volumes", f"about {max(1, -(-total // planned.wish.volume))} of "
                                f"{format_media(planned.wish.volume)}"))  # fmt: skip
    output.pairs(rows)
    _table([
        *((str(each.nevra), each.bytes, each.repository) for each in (packages.packages if packages else ())),
        *((each.file.filename, size_of(each), "") for each in (chosen.choices if chosen else ()) if each.file),
    ])  # fmt: skip
    output.findings(findings)


def _table(lines: Sequence[tuple[str, int | None, str]]) -> None:
    """How large it is, what, and from where. Names of wheels may be longer than a line, so they come last."""
    from envbuild.pipeline.sizes import format_media

    for name, size, source in lines:
        output.text(f"{format_media(size) if size is not None else '?':>9}  {name}{f'  ({source})' if source else ''}")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _target(to: Target) -> str:
    return f"{to.distro} {to.releasever or to.major} on {to.arch}{', FIPS mode' if to.fips else ''}"


def _moment(created: str) -> str:
    """The time of a bundle. Wheels have none, so that whoever exports them gets the same bytes."""
    return f"{created} (nothing in it says a date)" if created.startswith("1980-01-01T00:00:00") else created


def print_exported(done: Exported, *, json: bool, quiet: bool) -> None:
    """What an export has written."""
    if json:
        output.document("export", bundle=done.as_dict(), findings=output.documents(done.findings))
        return
    from envbuild.pipeline.sizes import format_media

    output.findings(done.findings)
    rows = [
        ("bundle", f"{done.folder} ({', '.join(done.manifest.parts)})"),
        ("files", f"{done.files}, {format_media(done.bytes)}"),
        ("signed by", done.signer or "nobody"),
        ("identity", done.sums),
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


def print_inspected(found: Inspected, *, listed: bool) -> None:
    """What a bundle says of itself."""
    from envbuild.pipeline.sizes import format_media

    rows: list[tuple[str, str]] = []
    if (volume := found.volume) is not None:
        rows.append(("volume", f"{volume.number} of {volume.of}, with {volume.files} files; put together: assemble.sh"))
    if (manifest := found.manifest) is not None:
        rows += [
            ("bundle", manifest.name),
            ("for", _target(manifest.target)),
            ("created", f"{_moment(manifest.created)} by envbuild {manifest.envbuild}"),
            *((part, format_media(size)) for part, size in found.sizes.items()),
        ]
        if manifest.rpms is not None:
            rows.append(("installs", " ".join(manifest.rpms.roots)))
            rows += [("", f"{'an empty system' if each.source == 'empty' else each.name}: "
                          f"{_count(len(each.installs), 'package')}") for each in manifest.rpms.targets]  # fmt: skip
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
    if listed and found.manifest is not None:
        _table(_listed(found.manifest))


def _listed(manifest: Manifest) -> list[tuple[str, int | None, str]]:
    rpms, wheels = manifest.rpms, manifest.wheels
    sizes = {file.path: file.bytes for file in manifest.files}
    lines: list[tuple[str, int | None, str]] = [
        (
            each.nevra,
            each.bytes,
            f"{each.repository}, signed by {each.signature.key_id if each.signature else 'nobody'}",
        )
        for each in (rpms.packages if rpms else ())
    ]
    lines += [(each.file.rpartition("/")[2], sizes[each.file], "") for each in (wheels.packages if wheels else ())]
    if (image := manifest.image) is not None:
        lines.append((image.path.rpartition("/")[2], sizes[image.path], image.config_digest))
    return lines


def print_compared(found: Compared) -> None:
    """What is different between two bundles."""
    from envbuild.pipeline.sizes import format_media

    for change in found.changes:
        sign = "+" if not change.old else "-" if not change.new else "~"
        said = " -> ".join(text for text in (change.old, change.new) if text)
        output.text(f"{sign} {change.kind:<7}  {change.name}  {said}")
    if not found.changes:
        output.text("no package, wheel or image is different")
    output.pairs([("new files", f"{format_media(found.fresh)} (what --base would carry, without scripts and lists)")])


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
    from envbuild.pipeline.sizes import format_media

    rows = [("signed by", found.signer or "nobody whose signature is good")]
    if found.key is not None:
        rows.append(("provenance", f"signed by key {found.key.id[:12]}"))
    if (level := found.shown.level) is not None:
        key = found.shown.key
        whose = f"signed by key {key.id[:12]}" if key else "by whom was not looked at: no key is trusted here"
        rows.append(("image", f"evidence shows level {level.value}, {whose}"))
    rows.append(("read", f"{found.files} files, {format_media(found.bytes)}"))
    if found.volume is not None:
        rows.append(("volume", f"{found.volume.number} of {found.volume.of}: of the others nothing was looked at"))
    output.pairs(rows)
    output.findings(found.findings)
    count = len(errors(found.findings))
    output.text(f"{found.folder}: " + ("verified" if found.good else f"not verified: {count} error{'s'[: count != 1]}"))
