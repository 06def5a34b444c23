"""Secrets that an image would hand to whoever pulls it: in its config, its history, and in every layer.

A file that a later layer deletes is still in the image, so layers are looked at, not the merged filesystem. The forms
of tokens are those their issuers document; what is told of a find is its place and its kind, never its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# A token in a text file is short; anything larger is data.
LARGEST = 256 * 1024

# Kind and form. Sources: GitHub "About authentication" (token prefixes), GitLab "Token overview", Hugging Face
# "User access tokens", AWS IAM "Unique identifiers", PyPI "API tokens", npm "About access tokens", Slack "Token
# types", NVIDIA NGC "API keys", Docker "Access tokens", RFC 7468 (PEM labels), RFC 3986 3.2.1 (userinfo).
_FORMS = (
    ("a private key", rb"-----BEGIN (?:[A-Z0-9]+ )?PRIVATE KEY-----"),
    ("a GitHub token", rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,})"),
    ("a GitLab token", rb"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("a Hugging Face token", rb"\bhf_[A-Za-z0-9]{30,}"),
    ("an AWS access key", rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a PyPI token", rb"\bpypi-AgE[A-Za-z0-9_-]{40,}"),
    ("an npm token", rb"\bnpm_[A-Za-z0-9]{36}"),
    ("a Slack token", rb"\bxox[abprs]-[A-Za-z0-9-]{20,}"),
    ("an NGC key", rb"\bnvapi-[A-Za-z0-9_-]{40,}"),
    ("a Docker token", rb"\bdckr_pat_[A-Za-z0-9_-]{20,}"),
    ("a password in a URL", rb"\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@\"'<>$]{1,64}:[^\s/@\"'<>$]{1,128}@[a-z0-9.-]"),
)
_TOKENS = tuple((kind, re.compile(form)) for kind, form in _FORMS)
# A variable whose name says that its value is one.
_NAMED = re.compile(
    rb"(?i)\b((?:[a-z0-9]+_)*(?:token|password|passwd|secret|secret_key|api_?key|access_key|private_key|credentials?))"
    rb"\s*=\s*[\"']?([^\s\"';&|]{6,})"
)
# Files that exist to hold one, by the end of their path.
# What stands for a value and is none.
_REFERENCES = (b"$", b"/run/secrets", b"*", b"<")
_FILES = re.compile(
    r"(?:^|/)(?:\.netrc|_netrc|\.pypirc|\.git-credentials|\.docker/config\.json|\.dockercfg|\.aws/credentials"
    r"|\.ssh/id_[a-z0-9_]+|\.kaggle/kaggle\.json|\.cache/huggingface/(?:token|stored_tokens)|\.huggingface/token"
    r"|\.npmrc|\.config/gcloud/[^/]+\.json|\.azure/accessTokens\.json|\.kube/config"
    r"|etc/apt/auth\.conf|etc/apt/auth\.conf\.d/[^/]+|run/secrets/[^/]+"
    # A subscription of RHEL: whoever has both files of it has what it pays for.
    r"|etc/pki/(?:entitlement|consumer)/[^/]+\.pem|run/secrets/etc-pki-entitlement/[^/]+|etc/sysconfig/rhn/systemid"
    r"|etc/(?:dnf|yum)/vars/[^/]*(?:pass|token|secret)[^/]*)$"
)
# Settings of package managers, where a line names its value a password (dnf.conf(5): password, proxy_password).
_SETTINGS = re.compile(r"etc/(?:yum\.repos\.d/|dnf/|yum/|yum\.conf$|rhsm/|zypp/)")
_PASSWORD = re.compile(
    rb"(?mi)^[ \t]*(?:[a-z0-9]+_)*(?:password|passwd|token|secret)[ \t]*[=:][ \t]*(?![$%<*\s])[^\s#]+"
)
# Their databases of what was done: whole command lines, addresses of mirrors. Binary, and searched all the same.
_HISTORY = re.compile(r"var/(?:lib|cache)/(?:dnf|yum)/.*\.(?:sqlite|db)(?:-wal|-journal)?$")
_LARGEST_HISTORY = 16 * 1024 * 1024
# Where distributions and wheels put their own files; their examples and tests hold made-up keys.
_OTHERS = re.compile(
    r"(?:usr/(?!local/)|opt/venv/lib/|opt/rh/|lib|bin/|sbin/|var/lib/(?:dpkg|apt|rpm)/"
    r"|etc/ssl/certs/|etc/ca-certificates|etc/pki/ca-trust/|proc/|sys/)"
)


@dataclass(frozen=True, slots=True)
class Leak:
    """One find.

    Attributes:
        place: Path in the image, or which part of its config.
        kind: What it looks like.
    """

    place: str
    kind: str


def looks_secret(path: str, size: int) -> bool:
    """Whether the content of a file with this path (no leading slash) is to be searched."""
    if _HISTORY.match(path):
        return 0 < size <= _LARGEST_HISTORY
    return 0 < size <= LARGEST and (_FILES.search(path) is not None or _OTHERS.match(path) is None)


def in_file(path: str, data: bytes) -> Iterator[Leak]:
    """Secrets in one file of a layer."""
    if _FILES.search(path) and data.strip():
        # These two may as well hold nothing but the address of a mirror.
        if not path.endswith((".npmrc", "/config.json")) or b"auth" in data:
            yield Leak(path, "a file for credentials")
        return
    if _HISTORY.match(path):
        named = any(not value.startswith(_REFERENCES) for _, value in _NAMED.findall(data))
        kinds = [*_kinds(data), *(["a password in a command"] if named else [])]
    elif b"\0" in data[:1024]:
        return  # no text
    else:
        kinds = [*_kinds(data)]
        if _SETTINGS.match(path) and _PASSWORD.search(data):
            kinds.append("a password in its settings")
    yield from (Leak(path, kind) for kind in kinds)


def in_config(config: Mapping[str, Any], public: Iterable[str]) -> Iterator[Leak]:
    """Secrets in an image's config: variables, labels, and the commands of its history.

    Args:
        config: The image config, as decoded JSON.
        public: Values that are known to be none, such as the row's own variables.
    """
    known = {f"{value}".encode() for value in public if value}
    for place, text in _texts(config):
        data = text.encode(errors="replace")
        kinds = set(_kinds(data))
        for name, value in _NAMED.findall(data):
            # A reference to a secret (a variable, a mounted file) is the right way.
            if not value.startswith(_REFERENCES) and value not in known:
                kinds.add(f"a value for {name.decode(errors='replace')}")
        yield from (Leak(place, kind) for kind in sorted(kinds))


def _kinds(data: bytes) -> Iterator[str]:
    return (kind for kind, form in _TOKENS if form.search(data))


def _texts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    container = config.get("config")
    if isinstance(container, dict):
        for variable in container.get("Env") or ():
            yield f"the variable {str(variable).partition('=')[0]}", str(variable)
        labels = container.get("Labels")
        for name, value in (labels if isinstance(labels, dict) else {}).items():
            yield f"the label {name}", f"{name}={value}"
        for key in ("Cmd", "Entrypoint", "Healthcheck", "OnBuild"):
            yield f"the image's {key}", str(container.get(key) or "")
    history = config.get("history")
    for number, step in enumerate(history if isinstance(history, list) else (), start=1):
        if isinstance(step, dict):
            for key in ("created_by", "comment", "author"):
                yield f"step {number} of the history", str(step.get(key) or "")
