"""Every respect in which a record of evidence is not what is wanted: one finding for each, none left out."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.elf.gpucode import cubin_runs_on
from envbuild.evidence import Evidence, Identity, PublicKey, Seal, State
from envbuild.judge.versions import capability
from envbuild.model import Environment, Finding, ImageIdentity, Level, Severity
from envbuild.pipeline.performance_told import required
from envbuild.pipeline.prove import claims
from envbuild.pipeline.wanted import Wanted, duration

# Rule, message, fix.
_Told = Iterator[tuple[str, str, str]]

# Clocks differ; evidence that is from further ahead than this was not dated by a clock.
_AHEAD = datetime.timedelta(minutes=10)
_CAPABILITY = re.compile(r"\d{1,3}\.\d[af]?")
_RULES = {
    State.UNSIGNED: "verify.unsigned",
    State.UNTRUSTED: "verify.key",
    State.TAMPERED: "verify.tampered",
    State.UNKNOWN: "verify.unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What evidence is held to: the image as its exported config says, as a row, by the present suite, now.

    Attributes:
        remote: It is in a registry, with its evidence: what is to be proven again has to be pushed again.
    """

    ref: str
    env: Environment
    identity: ImageIdentity
    wanted: Wanted
    keys: tuple[PublicKey, ...]
    suite: str
    now: datetime.datetime
    remote: bool = False

    def proving(self, *words: str) -> str:
        """The commands that make better evidence, for whoever has the image in an engine."""
        if not self.remote:
            return " ".join(("envbuild smoke", self.ref, *words))
        return f"{' '.join(('envbuild smoke', self.env.name, *words))} && envbuild push {self.env.name}"

    @property
    def level(self) -> Level:
        """The least level that will do."""
        return self.wanted.level or self.env.required_level


def to_signature(subject: Subject, seal: Seal) -> list[Finding]:
    """Why nobody who is trusted vouches for a record."""
    found = [] if subject.keys else [no_key(subject)]
    # Without a key to trust, that there is none for this signature is said already.
    if not seal.signed and (subject.keys or seal.state is not State.UNTRUSTED):
        found.append(finding(subject, _RULES[seal.state], seal.reason, fix=_seal_fix(subject, seal.state)))
    return found


def to_record(subject: Subject, record: Evidence) -> list[Finding]:
    """Every respect in which a record is not what is wanted."""
    told = [*_image(subject, record), *_level(subject, record), *_suite(subject, record), *_claims(subject, record)]
    findings = [finding(subject, rule, message, fix=fix) for rule, message, fix in told]
    return [*findings, *_age(subject, record), *_sm(subject, record)]


def to_performance(subject: Subject, doubt: str) -> Finding:
    """That an image is not known to be as fast as its row requires; only a warning where nobody asked for that."""
    asked = subject.env.performance
    assert asked is not None
    enough = subject.level.rank >= subject.env.required_level.rank
    severity = Severity.ERROR if subject.wanted.performance and enough else Severity.WARNING
    message = f"the row requires {required(asked)}: {doubt[:800]}"
    fix = f"Compare it where its baseline is: {subject.proving()}"
    return finding(subject, "verify.performance", message, fix=fix, severity=severity)


def _image(subject: Subject, record: Evidence) -> _Told:
    if record.image != Identity.of(subject.identity):
        seen, here = record.image.config_digest[:19], subject.identity.config_digest[:19]
        yield "verify.digest", f"the evidence is of another image: {seen}, and this one is {here}", again(subject)


def _level(subject: Subject, record: Evidence) -> _Told:
    if record.level.rank < subject.level.rank:
        where = "On a machine with a GPU of the row" if subject.level.rank > Level.CPU.rank else "Prove it"
        message = f"the evidence has level {record.level.value}; {subject.level.value} is required"
        yield "verify.level", message, f"{where}: {subject.proving()}"


def _suite(subject: Subject, record: Evidence) -> _Told:
    if record.suite != subject.suite:
        message = f"the evidence is of suite {record.suite[:12]!r}; this envbuild judges by {subject.suite[:12]}"
        fix = f"{again(subject)} Or verify it with the envbuild that saw it, {record.envbuild[:40]!r}."
        yield "verify.suite", message, fix


def _claims(subject: Subject, record: Evidence) -> _Told:
    said, today = record.claims, claims(subject.env)
    pairs = [(name, said.get(name), today.get(name)) for name in sorted(said.keys() | today.keys())]
    told = ", ".join(f"{name} {then!r}, now {now!r}" for name, then, now in pairs if then != now)
    if told:
        message = f"the evidence is of other claims than the row's today: {told[:500]}"
        yield "verify.claims", message, f"Build the row as it is now: envbuild build {subject.env.name}"


def _age(subject: Subject, record: Evidence) -> list[Finding]:
    age = subject.now - record.finished
    if age < -_AHEAD:
        told = f"the evidence is from the future: {record.finished:%Y-%m-%d %H:%M} UTC"
        return [finding(subject, "verify.age", told, fix="Set this machine's clock. " + again(subject))]
    if subject.wanted.max_age is not None and age > subject.wanted.max_age:
        told = f"the evidence is {duration(age)} old; {duration(subject.wanted.max_age)} are allowed"
        return [finding(subject, "verify.age", told, fix=again(subject))]
    return []


def _sm(subject: Subject, record: Evidence) -> list[Finding]:
    wanted = subject.wanted.sm
    if wanted is None:
        return []
    name = f"{wanted[0]}.{wanted[1]}"
    listed = record.portability.get("cubins")
    codes = [str(item) for item in listed if _CAPABILITY.fullmatch(str(item))] if isinstance(listed, list) else []
    # PTX is not counted on: it needs a newer driver.
    if not any(cubin_runs_on(code, name) for code in codes):
        has = f"torch and its ops have code for {' '.join(codes)[:300]}" if codes else "it has no code for any GPU"
        fix = "Take a row for that GPU: envbuild list"
        return [finding(subject, "verify.sm", f"nothing shows that the image runs on {name}: {has}", fix=fix)]
    seen = sorted({str(gpu["sm"]) for gpu in record.host.gpus if gpu.get("sm")})
    if seen and capability(name) not in map(capability, seen):
        told = f"the image has code for {name}, and was proven on {', '.join(seen)[:100]!r} only"
        fix = f"On such a GPU: {subject.proving()}"
        return [finding(subject, "verify.sm", told, fix=fix, severity=Severity.WARNING)]
    return []


def finding(subject: Subject, rule: str, message: str, *, fix: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, subject=subject.ref, message=message, fix=fix)


def no_key(subject: Subject) -> Finding:
    return finding(
        subject, "verify.key", "no key is trusted, so no signature can be checked",
        fix="Name the signer's public key: --key FILE, or [trust] keys in envbuild.toml.",
    )  # fmt: skip


def again(subject: Subject) -> str:
    where = "See it again where it was proven" if subject.remote else "See it again"
    return f"{where}, and sign it: {subject.proving('--key FILE')}"


def _seal_fix(subject: Subject, state: State) -> str:
    if state is State.UNTRUSTED:
        trusted = ", ".join(key.id[:12] for key in subject.keys)
        return (
            f"Trusted are {trusted}. If the signer is to be trusted, get their public key from themselves: --key FILE"
        )
    if state is State.UNKNOWN:
        return "Update envbuild. Or " + again(subject)[0].lower() + again(subject)[1:]
    return again(subject)
