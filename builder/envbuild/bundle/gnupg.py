"""gpg as a program: keyrings of our own, and what it lists."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from envbuild import process
from envbuild.errors import BundleError

# Not that of the key that signs evidence: one export may use both.
PASSPHRASE_VARIABLE = "ENVBUILD_GPG_PASSPHRASE"
SECONDS = 120.0
LOCALE = {"LC_ALL": "C"}


def need(program: str) -> None:
    """Look for a program.

    Raises:
        BundleError: It is not there.
    """
    if process.which(program) is None:
        raise BundleError(f"there is no {program} here", hint="Install GnuPG, such as apt install gpg gpgv.")


@contextlib.contextmanager
def own_home() -> Iterator[Path]:
    """A keyring of our own; its agent ends with it."""
    # Below /tmp: an agent's socket has a path of 108 bytes at most.
    with tempfile.TemporaryDirectory(prefix="envbuild-gpg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        try:
            yield home
        finally:
            if process.which("gpgconf") and any(home.glob("S.gpg-agent*")):
                process.run(("gpgconf", "--homedir", folder, "--kill", "all"), timeout=SECONDS)


def gpg(home: Path | None, arguments: Sequence[str], what: str, passphrase: str | None = None) -> process.Completed:
    """Run gpg, which asks nobody anything.

    Args:
        home: Its keyring; None for the user's own.
        what: How an error's message begins.

    Raises:
        BundleError: There is no gpg, or it fails.
    """
    need("gpg")
    argv = ["gpg", "--batch", "--no-tty", "--quiet", "--yes", "--no-auto-check-trustdb", "--trust-model", "always"]
    argv += ["--homedir", str(home), "--no-options"] if home is not None else []
    if passphrase is not None:
        argv += ["--pinentry-mode", "loopback", "--passphrase-fd", "0"]
    secret = None if passphrase is None else f"{passphrase}\n".encode()
    done = process.run([*argv, *arguments], env=LOCALE, timeout=SECONDS, input=secret)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "faked system time" not in line]
        said = process.last_words("\n".join(dict.fromkeys(lines)), 300).replace("gpg: ", "")
        raise BundleError(
            f"{what}: {said or 'gpg failed'}", hint=f"A key with a passphrase: give it in {PASSPHRASE_VARIABLE}."
        )
    return done


def listed(home: Path | None, *request: str) -> list[list[str]]:
    """What gpg lists, record by record (GnuPG, doc/DETAILS: "Format of the colon listings").

    Raises:
        BundleError: As ``gpg``.
    """
    done = gpg(home, ("--with-colons", "--fixed-list-mode", *request), "cannot list keys")
    return [line.split(":") + [""] * 12 for line in done.stdout.splitlines()]


def secret_keys(home: Path | None, *wanted: str) -> list[str]:
    """Fingerprints of the secret keys that are meant, of each its primary one.

    Raises:
        BundleError: As ``gpg``.
    """
    found, primary = list[str](), False
    for record in listed(home, "--list-secret-keys", *wanted):
        if record[0] == "fpr" and primary:
            found.append(record[9])
        primary = record[0] == "sec"
    return found
