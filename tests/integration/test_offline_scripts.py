"""Scripts of a bundle against who wants to deceive them, and against tools that fail. Nothing is installed here.

What would change a host is a fake: a program of its name that is found before the real one, and writes down what it is
asked for.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.bundle import scripts, signing
from offline_made import finish, settings, sh, sign, split, tree
from rpm_world import Key, key, need_tools, run

SHELLS = ("dash", "bash")
FOLDER = Path(scripts.__file__).parent


@pytest.fixture(scope="module")
def maker() -> Iterator[Key]:
    need_tools()
    with key("bundle-maker") as made:
        yield made


@pytest.fixture
def bundle(maker: Key, tmp_path: Path) -> Path:
    folder = tmp_path / "made" / "small"
    (folder / "images").mkdir(parents=True)
    (folder / "images/it.oci.tar").write_bytes(os.urandom(250_000))
    (folder / "wheels").mkdir()
    (folder / "wheels/b.whl").write_bytes(os.urandom(1000))
    return finish(folder, maker, settings("small", "image"))


def with_tools(shell: str, *argv: str | Path, tools: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script where programs of a folder are found first."""
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": "/nonexistent", **more}
    shells = {"dash": ["dash"], "bash": ["bash", "--posix"]}
    return subprocess.run([*shells[shell], *map(str, argv)], capture_output=True, text=True, timeout=60, env=env)


def tool(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


# --- who signed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_a_fingerprint_that_was_never_set_trusts_nobody(bundle: Path, shell: str) -> None:
    for words in (("--fingerprint", ""), ("--fingerprint=",), ("--fingerprint", " : ")):
        done = sh(bundle / "verify.sh", *words, shell=shell)
        assert done.returncode == 2 and "--fingerprint is empty" in done.stderr, done
    # Nor is one that nobody looks at.
    done = sh(bundle / "verify.sh", "--insecure-no-signature", "--fingerprint", "0" * 40, shell=shell)
    assert done.returncode == 2 and "contradict" in done.stderr, done


def agreed(bundle: Path) -> tuple[str, bool]:
    """Who signed as envbuild says, and whether the script takes the bundle for his."""
    data, asc, public = ((bundle / name).read_bytes() for name in ("SHA256SUMS", "SHA256SUMS.asc", "keys/bundle.asc"))
    seal = signing.check(data, asc, public)
    done = {sh(bundle / "verify.sh", shell=shell).returncode for shell in SHELLS}
    assert done in ({0}, {10})
    return seal.fingerprint or seal.reason, done == {0}


def test_the_script_and_envbuild_agree_on_keys_that_ended_and_on_signatures_of_others(
    bundle: Path, maker: Key, tmp_path: Path
) -> None:
    assert agreed(bundle) == (maker.fingerprint, True)
    long_ago = (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=400)).strftime("%Y%m%dT%H%M%S")
    with key("second") as second:
        gpg = ("gpg", "--homedir", second.home, "--batch", "--yes", "--pinentry-mode", "loopback", "--passphrase", "")
        asc, public = bundle / "SHA256SUMS.asc", bundle / "keys/bundle.asc"
        ours = asc.read_bytes()

        # Two who both signed, and a ring with the keys of both: whose bundle would it be?
        sign(second, bundle / "SHA256SUMS")
        packets = [run("gpg", "--dearmor", "--output", tmp_path / f"{name}.gpg", path) for name, path in
                   (("theirs", asc), ("their-key", second.public), ("our-key", maker.public))]  # fmt: skip
        assert len(packets) == 3
        (tmp_path / "ours.asc").write_bytes(ours)
        run("gpg", "--dearmor", "--output", tmp_path / "ours.gpg", tmp_path / "ours.asc")
        for target, parts in ((asc, ("ours", "theirs")), (public, ("our-key", "their-key"))):
            (tmp_path / "both").write_bytes(b"".join((tmp_path / f"{part}.gpg").read_bytes() for part in parts))
            run("gpg", "--yes", "--output", tmp_path / "both.asc", "--enarmor", tmp_path / "both")
            text = (tmp_path / "both.asc").read_text()
            kind = "SIGNATURE" if target == asc else "PUBLIC KEY BLOCK"
            target.write_text(
                text.replace("ARMORED FILE", kind).replace('Comment: Use "gpg --dearmor" for unpacking\n', "")
            )
        assert not agreed(bundle)[1] and len(agreed(bundle)[0]) != 40

        # A key that has expired since it signed.
        run(*gpg, "--faked-system-time", long_ago, "--quick-gen-key", "expired@x", "rsa3072", "sign", "20d")
        expired = run(*gpg, "--with-colons", "--list-keys", "expired@x").split("fpr:")[1].strip(":").split(":")[0]
        public.write_text(run(*gpg, "--armor", "--export", expired))
        run(*gpg, "--faked-system-time", long_ago, "--local-user", expired, "--digest-algo", "SHA512", "--armor",
            "--output", asc, "--detach-sign", bundle / "SHA256SUMS")  # fmt: skip
        said, taken = agreed(bundle)
        assert "expired" in said and not taken
        assert "clock of this host" in sh(bundle / "verify.sh", "--fingerprint", expired).stderr

        # One that was revoked.
        certificate = second.home / "openpgp-revocs.d" / f"{second.fingerprint}.rev"
        (tmp_path / "revoke.asc").write_text(certificate.read_text().replace(":-----BEGIN", "-----BEGIN"))
        sign(second, bundle / "SHA256SUMS")
        run(*gpg, "--import", tmp_path / "revoke.asc")
        public.write_text(run(*gpg, "--armor", "--export", second.fingerprint))
        said, taken = agreed(bundle)
        assert "revoked" in said and not taken


def test_a_signed_message_in_place_of_a_detached_signature_signs_nothing_here(bundle: Path, maker: Key) -> None:
    """What is signed inside of it is right, and is not what lies beside it."""
    sums = bundle / "SHA256SUMS"
    run("gpg", "--homedir", maker.home, "--batch", "--yes", "--armor", "--output", f"{sums}.asc", "--sign", sums)
    sums.write_text(sums.read_text().replace("0", "1"))
    said, taken = agreed(bundle)
    assert not taken and len(said) != 40


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_a_search_path_for_cd_leads_nowhere_else(bundle: Path, shell: str, tmp_path: Path) -> None:
    """A relative path to the script, and a folder of the same name elsewhere."""
    shutil.copytree(bundle, tmp_path / "elsewhere" / "small")
    (tmp_path / "elsewhere" / "small" / "bundle.conf").unlink()
    env = {"PATH": os.environ["PATH"], "CDPATH": str(tmp_path / "elsewhere")}
    for script, *words in (("verify.sh",), ("assemble.sh", "-o", str(tmp_path / "out"), str(bundle))):
        argv = [{"dash": "dash", "bash": "bash"}[shell], f"small/{script}", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, cwd=bundle.parent)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_where_nothing_can_be_written_the_exit_code_says_so(bundle: Path, shell: str, tmp_path: Path) -> None:
    """A limit of the kernel stands for a full disk."""
    program = {"dash": "dash", "bash": "bash --posix"}[shell]
    for words in (f"{bundle}/verify.sh", f"{bundle}/assemble.sh -o {tmp_path}/out {bundle}"):
        line = f"trap '' XFSZ; ulimit -f 0; exec {program} {words}"
        done = subprocess.run(["dash", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.returncode == 21 and "what to do: " in done.stderr, done


def test_volumes_with_odd_names_and_lists_that_nobody_signed(bundle: Path, tmp_path: Path) -> None:
    volumes = split(bundle, tmp_path, 100_000)
    odd = [volume.rename(tmp_path / f" {number} of them ") for number, volume in enumerate(volumes)]
    done = sh(odd[0] / "assemble.sh", "-o", "-x", *odd, cwd=tmp_path)
    assert done.returncode == 0 and tree(tmp_path / "-x") == tree(bundle), done.stderr
    # A piece of a size that no disk holds, and a link in the last of them.
    text = (odd[0] / "CHUNKS").read_text().replace(" 100000 ", f" {'9' * 30} ")
    (odd[0] / "CHUNKS").write_text(text)
    done = sh(odd[0] / "assemble.sh", "-o", tmp_path / "out", *odd)
    assert done.returncode == 11 and "the pieces of images/it.oci.tar" in done.stderr, done.stderr
    (odd[-1] / "lost+found").symlink_to("/etc")
    done = sh(odd[0] / "assemble.sh", "-o", tmp_path / "out", *odd)
    assert done.returncode == 11 and "lost+found" in done.stderr, done.stderr


def test_no_escape_sequence_of_a_name_reaches_the_terminal(bundle: Path) -> None:
    (bundle / "evil\x1b[2Jname").symlink_to("x")
    done = sh(bundle / "verify.sh")
    assert done.returncode == 11 and "evil?[2Jname" in done.stderr and "\x1b" not in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_interrupted_is_said_and_nothing_is_left(bundle: Path, maker: Key, shell: str, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, in the middle of the sums."""
    tool(tmp_path / "bin", "sha256sum", "kill -INT 0; sleep 60")
    (tmp_path / "scratch").mkdir()
    for words in (
        ("verify.sh",),
        ("assemble.sh", "-o", str(tmp_path / "out"), str(bundle)),
        ("install.sh", "--fingerprint", maker.fingerprint, "--dry-run", "--prefix", str(tmp_path / "prefix")),
    ):
        argv = [*{"dash": ["dash"], "bash": ["bash", "--posix"]}[shell], str(bundle / words[0]), *words[1:]]
        env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "scratch")}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, start_new_session=True)
        assert done.returncode == 130 and "interrupted" in done.stderr and "error" not in done.stderr, done
        assert list((tmp_path / "scratch").iterdir()) == [] and not (tmp_path / "prefix").exists()


def test_busybox_does_the_same(bundle: Path, maker: Key, tmp_path: Path) -> None:
    """A third shell: ash, which no Enterprise Linux has and rescue media do."""
    busybox = shutil.which("busybox")
    if busybox is None:
        place = tmp_path / "deb"
        place.mkdir(mode=0o777)
        place.chmod(0o777)
        for argv in (["apt-get", "download", "-qq", "busybox"], ["sh", "-c", "dpkg-deb -x ./*.deb ."]):
            subprocess.run(argv, cwd=place, check=True, capture_output=True, timeout=120)
        busybox = str(place / "bin/busybox")

    def ash(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([busybox, "ash", *map(str, words)], capture_output=True, text=True, timeout=60)

    for name in scripts.files():
        assert ash("-n", FOLDER / name).stderr == ""
    assert ash(bundle / "verify.sh", "--fingerprint", maker.fingerprint).returncode == 0
    volumes = split(bundle, tmp_path, 100_000)
    done = ash(volumes[0] / "assemble.sh", "-o", tmp_path / "out", *volumes)
    assert done.returncode == 0 and tree(tmp_path / "out") == tree(bundle), done.stderr
    (tmp_path / "out/images/it.oci.tar").write_bytes(b"x")
    done = ash(tmp_path / "out/verify.sh", "--fingerprint", maker.fingerprint)
    assert done.returncode == 11 and "images/it.oci.tar" in done.stderr, done.stderr


# --- rpm, by a fake ---------------------------------------------------------------------------------------------------

FAKE_RPM = """
echo "$*" >> "$FAKE/asked"
case "$*" in
    -qa*gpg-pubkey*) cat "$FAKE/keys" ;;
    -qa*) cat "$FAKE/packages" ;;
    -q*) exit 1 ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with a killed installation of a package, on which somebody installed another one since."""
    tool(tmp_path / "bin", "rpm", FAKE_RPM)
    tool(tmp_path / "bin", "id", "echo 0")
    for name in ("dnf", "yum"):
        tool(tmp_path / "bin", name, "exit 1")
    (tmp_path / "keys").write_text("gpg-pubkey-aaaa-1\ngpg-pubkey-bbbb-2\ngpg-pubkey-cccc-3\n")
    old = "bash-0:5.1-1.el8.x86_64\nglibc-0:2.28-1.el8.x86_64\n"
    (tmp_path / "packages").write_text(f"{old}httpd-0:2.4-1.el8.x86_64\nlibaio-2:1.0-1.el8.x86_64\n")
    state = tmp_path / "prefix" / "envbuild"
    (state / "before").mkdir(parents=True)
    shutil.copy(FOLDER / "lib/uninstall.sh", state / "uninstall.sh")
    (state / "bundle").write_text("envbuild bundle small\n")
    (state / "own-packages").write_text("libaio-1.0-1.el8.x86_64\n")
    (state / "own-keys").write_text("gpg-pubkey-bbbb-2\n")
    (state / "before/packages").write_text(old)
    (state / "before/keys").write_text("gpg-pubkey-aaaa-1\n")
    return tmp_path


def uninstall(host: Path, *words: str, shell: str = "dash") -> subprocess.CompletedProcess[str]:
    script = host / "prefix/envbuild/uninstall.sh"
    return with_tools(shell, script, *words, tools=host / "bin", FAKE=str(host))


@pytest.mark.parametrize("shell", SHELLS)
def test_only_what_the_bundle_has_is_undone_whatever_came_since(host: Path, shell: str) -> None:
    done = uninstall(host, "--dry-run", shell=shell)
    assert done.returncode == 0, done.stderr
    assert "remove package libaio-2:1.0-1.el8.x86_64" in done.stdout and "remove key gpg-pubkey-bbbb-2" in done.stdout
    assert "httpd" not in done.stdout and "cccc" not in done.stdout
    assert not (host / "prefix/envbuild/changed").exists() and (host / "prefix/envbuild/before/packages").exists()


def test_what_another_bundle_stands_on_stays_and_goes_with_it(host: Path) -> None:
    other = host / "other" / "envbuild"
    other.mkdir(parents=True)
    shutil.copytree(host / "other", host / "prefix-2")
    for place in (other, host / "prefix-2/envbuild"):
        (place / "own-packages").write_text("gcc-1-1.x86_64\n" if place == other else "libaio-1.0-1.el8.x86_64\n")
    done = uninstall(host, "--dry-run")
    assert f"1 packages stay: {host}/prefix-2 has them" in done.stdout and "remove package" not in done.stdout, done
    assert not (host / "prefix-2/envbuild/changed").exists()
    assert uninstall(host).returncode == 0
    assert " -e" not in (host / "asked").read_text().replace("-e --allmatches", "")
    assert (host / "prefix-2/envbuild/changed").read_text() == "installed libaio-2:1.0-1.el8.x86_64\n"
    assert not (other / "changed").exists() and not (host / "prefix/envbuild").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_rpm_that_does_not_answer_makes_no_package_ours(host: Path, shell: str) -> None:
    tool(host / "bin", "rpm", 'echo "$*" >> "$FAKE/asked"; echo "error: no database" >&2; exit 1')
    done = uninstall(host, shell=shell)
    assert done.returncode == 70 and "rpm cannot list what is installed" in done.stderr, done
    assert " -e" not in (host / "asked").read_text() and (host / "prefix/envbuild/before/packages").exists()
    assert not os.path.lexists(host / "prefix/lock")
    # Before a transaction: an empty list would make all of the host's packages new ones.
    script = f"""
        set -eu
        stop() {{ echo "$@"; exit "$1"; }}
        prefix={host}/prefix state={host}/prefix/envbuild scratch={host}
        . {FOLDER}/lib/receipt.sh
        rm "$state/before/packages"
        before packages list_packages
    """
    done = with_tools(shell, "-c", script, tools=host / "bin", FAKE=str(host))
    assert done.returncode == 31 and not (host / "prefix/envbuild/before/packages").exists(), done
    described = with_tools(
        shell, FOLDER / "collect-target.sh", "-o", host / "t.txt", tools=host / "bin", FAKE=str(host)
    )
    assert described.returncode == 20 and not (host / "t.txt").exists(), described


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("a-1.rpm: rsa sha1 (md5) pgp md5 OK", 0),
        ("a-1.rpm: digests signatures OK", 0),
        ("a-1.rpm: rsa sha1 MD5 PGP NOT OK", 10),
        ("a-1.rpm: digests SIGNATURES NOT OK", 10),
        ("a-1.rpm: sha1 md5 OK", 10),
        ("a-1.rpm: RSA sha1 ((MD5) PGP) md5 NOT OK (MISSING KEYS: RSA#aaaa PGP#aaaa)", 10),
        ("", 10),
    ],
)
def test_what_a_rpm_of_any_age_says_of_signatures_is_read_right(host: Path, said: str, code: int) -> None:
    """As rpm 4.11 and 4.18 write it (lib/rpmchecksig.c); a fake says it."""
    tool(host / "bin", "rpm", f'case "$*" in *-K*) [ -z "{said}" ] || echo "{said}" ;; esac')
    (host / "rpms/Packages").mkdir(parents=True)
    (host / "rpms/Packages/a-1.rpm").touch()
    (host / "sums").write_text(f"{'0' * 64}  keys/a.asc\n{'0' * 64}  rpms/Packages/a-1.rpm\n")
    script = f"""
        set -eu
        stop() {{ echo "$@"; exit "$1"; }}
        say() {{ :; }}; named() {{ cat "$1"; }}; check_streams() {{ :; }}; conf() {{ :; }}
        here={host} believed={host} sums={host}/sums scratch={host}
        . {FOLDER}/lib/rpms.sh
        check_streams() {{ :; }}
        check_packages
    """
    done = with_tools("dash", "-c", script, tools=host / "bin")
    assert done.returncode == code, done


def test_nobody_undoes_while_somebody_installs(host: Path) -> None:
    lock = host / "prefix/lock"
    began = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]
    for holder, said in ((f"{os.uname().nodename} {os.getpid()} {began}", f"process {os.getpid()}"),
                         ("another-host 1 1", "an installation on another-host")):  # fmt: skip
        lock.symlink_to(holder)
        done = uninstall(host)
        assert done.returncode == 70 and said in done.stderr and str(lock.readlink()) == holder, done
        lock.unlink()
    lock.symlink_to(f"{os.uname().nodename} {os.getpid()} 1")
    tool(host / "bin", "rpm", 'readlink "$FAKE/prefix/lock" > "$FAKE/holder"; exit 1')
    assert uninstall(host).returncode == 70
    assert (host / "holder").read_text().split()[1] != str(os.getpid()) and not os.path.lexists(lock)
