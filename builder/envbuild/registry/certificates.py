"""A registry's own CA and client certificate, where Docker and podman look for them.

``<folder>/HOST[:PORT]/``: every ``*.crt`` is a CA that is trusted besides the others, ``NAME.cert`` with ``NAME.key`` a
certificate that says who we are. Sources, read 2026-11-30: docs.docker.com/engine/security/certificates,
containers-certs.d(5), and moby's registry.CertsDir for Docker without root.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import InputError

SYSTEM = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))
_MAX_BYTES = 1 << 20
_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """What is known of one registry.

    Attributes:
        roots: CAs as PEM, one after another; empty without.
        client: Our certificate and its key, for this registry alone.
    """

    roots: str = field(default="", repr=False)
    client: tuple[Path, Path] | None = None


def certificates_for(registries: tuple[str, ...], environ: Mapping[str, str]) -> Certificates:
    """What lies there for a registry. Of several client certificates the first is taken: the user's before the
    system's, then by name.

    Args:
        registries: Its names, each host and port; Docker Hub has two.

    Raises:
        InputError: A file cannot be used.
    """
    roots: list[str] = []
    clients: list[tuple[Path, Path]] = []
    for folder in (place / name for place in _places(environ) for name in dict.fromkeys(registries)):
        for path in _files(folder):
            if path.suffix == ".crt":
                roots.append(_root(path))
            elif path.suffix == ".cert":
                clients.append(_pair(path))
    return Certificates(roots="\n".join(dict.fromkeys(roots)), client=clients[0] if clients else None)


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (pathlib's raises)
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"))
    yield Path(home, ".config", "containers", "certs.d")
    yield config / "docker" / "certs.d"
    yield from SYSTEM


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in (".crt", ".cert"))[:_MOST]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unusable(folder, error) from error


def _root(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except OSError as error:  # ssl's own are of this kind too
        if not isinstance(error, ssl.SSLError):
            raise _unusable(path, error) from error
    except ValueError:
        pass
    else:
        return text.strip()
    raise InputError(
        f"{path}: no CA certificate (PEM) can be read there",
        hint="*.crt are CAs; a certificate of our own is NAME.cert, with NAME.key beside it.",
    )


def _pair(path: Path) -> tuple[Path, Path]:
    key = path.with_suffix(".key")
    try:
        # Asked for a password, OpenSSL would ask the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, key, password=lambda: b"")
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: there is no {key.name} beside it",
            hint="*.cert are certificates of our own and need their key; a CA's is called *.crt.",
        ) from error
    except ssl.SSLError as error:
        raise InputError(
            f"{path}: not a certificate that fits {key.name} and can be used without a password",
            hint="Both are PEM; take them away if the registry wants none.",
        ) from error
    except OSError as error:
        raise _unusable(path, error) from error
    return path, key


def _unusable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be read: {error.strerror or error}",
        hint="Registries are asked as you, not by the engine: what lies there for them has to be readable for you.",
    )
