"""Which parts a bundle of a row has, and what is to be said of those that it has not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envbuild.bundle.rpms import ARCHES as KNOWN_ARCHES
from envbuild.bundle.sections import Target
from envbuild.bundle.words import Part
from envbuild.errors import EngineError, GateError, InputError
from envbuild.model import Environment, Finding, Severity
from envbuild.net import Missing, NetworkError
from envbuild.pipeline.exported import ARCHES, Wish, is_rpm
from envbuild.pipeline.exported_image import Carried

_RPM_OPTIONS = "--root, --repo, --repo-key, --target-manifest, --module, --multilib and --fips"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The parts that are wanted.

    Attributes:
        insisted: Whether the image was asked for by name: then the lack of it is an error.
    """

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]
    insisted: bool

    @property
    def needs_row(self) -> bool:
        """Whether the row's lock is needed."""
        return "wheels" in self.parts or "image" in self.parts

    @property
    def without_image(self) -> tuple[Part, ...]:
        """The parts that are left without it."""
        return tuple(part for part in self.parts if part != "image")

    def tried(self, find: Callable[[], Carried], env: Environment) -> tuple[Carried | None, tuple[Finding, ...]]:
        """The image, or a finding that says why there is none.

        Raises:
            GateError: There is none, and it was asked for (exit 5).
            EngineError: Nobody answers, and it was asked for; or the site's registry does not (exit 3).
            FindingsError: There is one, and it is not to be believed (exit 5).
        """
        try:
            return find(), ()
        except (GateError, EngineError) as error:
            if self.insisted:
                raise
            # A registry that does not answer may have it: the next run would give another bundle. That there is no
            # engine where bundles are exported is nothing unusual.
            if isinstance(error, NetworkError) and not isinstance(error, Missing):
                error.hint = f"{error.hint} Or leave the image out: --what {','.join(self.without_image)}".lstrip()
                raise
            source = "; DeepSpeed goes as a source archive, and is compiled there" if "wheels" in self.parts else ""
            message = f"the bundle has no image: {error.message}{source}"
            return None, (_warning("export.image", env.name, message, error.hint),)


def choose(env: Environment, to: Target, wish: Wish) -> Choice:
    """The parts that a row can have, or those that were asked for.

    Raises:
        InputError: The row cannot have one of them.
    """
    rpm, own = is_rpm(env), ARCHES[env.platforms[0]]
    if to.arch not in KNOWN_ARCHES:
        raise InputError(f"--arch: {to.arch[:40]!r} is no machine", hint=f"Say {', '.join(KNOWN_ARCHES)}.")
    asked = wish.parts or ()
    if "rpms" in asked and not rpm:
        raise InputError(
            f"{env.name} is of the family {env.family}, which has no RPM packages",
            hint="Leave them out: --what wheels,image,doctor",
        )
    wants_rpms = rpm and (wish.parts is None or "rpms" in asked)
    if not wants_rpms and (
        wish.roots or wish.repositories or wish.keys or wish.hosts or wish.streams or wish.multilib or wish.fips
    ):
        raise InputError(f"{_RPM_OPTIONS} go with RPM packages, and this bundle has none")
    foreign = to.arch != own
    if foreign and (taken := [part for part in ("wheels", "image") if part in asked]):
        raise InputError(
            f"{env.name} is locked for {own}: its {taken[0]} cannot be had for {to.arch}",
            hint="Leave them out: --what rpms,doctor. Or export a row that is for that machine.",
        )
    if wish.parts is not None:
        return Choice(parts=wish.parts, findings=(), insisted="image" in wish.parts)
    findings = []
    parts: list[Part] = ["rpms"] if rpm else []
    if foreign:
        message = f"the row is locked for {own}: the bundle for {to.arch} has neither wheels nor image"
        findings.append(_warning("export.arch", env.name, message, "Export a row that is for that machine."))
    else:
        parts += ["wheels", "image"]
    return Choice(parts=(*parts, "doctor"), findings=tuple(findings), insisted=False)


def without_toolkit(env: Environment) -> tuple[Finding, ...]:
    """What a source archive of DeepSpeed lacks on a target of a row for GPUs."""
    if env.cuda is None:
        return ()
    message = (
        f"DeepSpeed's ops are compiled on the target at their first use, by a CUDA {env.cuda.version} toolkit that "
        "this bundle does not have"
    )
    fix = f"Prove an image first (envbuild build {env.name}): its wheel has them. Or install that toolkit there."
    return (_warning("export.ops", env.name, message, fix),)


def not_signed() -> tuple[Finding, ...]:
    """A bundle that nobody vouches for."""
    fix = (
        "Export it with --gpg-key KEY. To make a key: "
        "envbuild key new --openpgp 'Example bundles <ops@example.com>' -o bundle-key.asc"
    )
    return (_warning("export.unsigned", "SHA256SUMS.asc", "nobody signs this bundle: install.sh refuses it", fix),)


def _warning(rule: str, subject: str, message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity=Severity.WARNING, subject=subject, message=message, fix=fix, source="export")
