"""The rule about ends of support. It says when; ``check`` knows what day it is."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts, Lifetime
from envbuild.matrix.rules.bases import Root, cuda_of_image, roots
from envbuild.matrix.rules.problem import Problem, unchecked
from envbuild.model import Environment, Severity


def bases_are_supported(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R21: the base's release, the toolkit image's release and CUDA tag, and the suite of the stand-in are supported.

    What is past its end gets no more security fixes, and its tag or its packages may vanish: the row needs a digest or
    a mirror, and somebody who answers for it until a day.
    """
    for root in roots(env, facts):
        if root.release is not None:
            name = facts.name_of(root.release)
            yield from _end(root, f"the release {name}", facts.lifetimes.releases.get(name))
        cuda = cuda_of_image(root.name)
        if cuda is not None:
            yield from _end(root, f"the CUDA {cuda} images of NVIDIA", facts.lifetimes.cuda_images.get(cuda))


def _end(root: Root, what: str, lifetime: Lifetime | None) -> Iterator[Problem]:
    if lifetime is None:
        message = f"the end of support for {what} ({root.name}) is unknown to the facts, unverified"
        yield unchecked(root.key, message, fix="look it up, and pin a digest")
        return
    path = ".".join(map(str, root.key))
    keep = {
        "base.image": "mirror it and pin base.digest, and",
        "base.toolkit_image": "mirror it and pin base.toolkit_digest, and",
        "base.bootstrap.suite": "mirror its packages, and",
    }[path]
    yield Problem(
        key=root.key,
        severity=Severity.WARNING,
        message=f"{root.name}: end of support for {what}: {lifetime.end}"
        + ("" if root.digest else ", and no digest is pinned"),
        fix=f"use a newer one, or {'' if root.digest else keep + ' '}answer for it until a day: "
        f'waivers: [{{rule: R21, key: {path}, reason: "why it has to stay", until: "YYYY-MM-DD"}}]',
        facts=(lifetime,),
        ends=lifetime.end,
    )
