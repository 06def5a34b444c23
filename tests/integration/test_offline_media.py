"""Bundles that are verified and put together from volumes, by both kinds of shell; nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import offline_host
from envbuild.engines import DockerEngine
from offline_made import digest, finish, seal, settings, sh, sign, split, tree
from rpm_world import Key, key, need_tools

SHELLS = ("dash", "bash")


@pytest.fixture(scope="module")
def maker() -> Iterator[Key]:
    need_tools()
    with key("bundle-maker") as made:
        yield made


@pytest.fixture(scope="module")
def bundle(maker: Key, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of some files that are no packages; one of them is larger than a volume."""
    folder = tmp_path_factory.mktemp("made") / "small"
    for name, size in (
        ("images/it.oci.tar", 250_000),
        ("rpms/Packages/a-1.rpm", 40_000),
        ("wheels/b~1+c.whl", 30_000),
        ("empty", 0),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    return finish(folder, maker, settings("small", "image"))


@pytest.fixture
def volumes(bundle: Path, tmp_path: Path) -> list[Path]:
    return split(bundle, tmp_path, 100_000)


@pytest.mark.parametrize("shell", SHELLS)
def test_verify_says_who_made_it_and_whether_it_is_whole(bundle: Path, maker: Key, shell: str, tmp_path: Path) -> None:
    place = Path(shutil.copytree(bundle, tmp_path / "a folder; with $signs"))
    before = tree(place)
    done = sh(place / "verify.sh", shell=shell)
    assert done.returncode == 0 and f"say it: --fingerprint {maker.fingerprint}" in done.stdout, done.stderr
    grouped = " ".join(maker.fingerprint[start : start + 4] for start in range(0, 40, 4)).lower()
    done = sh(place / "verify.sh", "--fingerprint", grouped, shell=shell, cwd="/")
    assert done.returncode == 0 and "every sum is right" in done.stdout and done.stderr == ""
    assert tree(place) == before
    (place / ".Trash").mkdir()
    (place / ".Trash" / "notes.txt").write_text("")
    done = sh(place / "verify.sh", shell=shell)
    assert done.returncode == 0 and ".Trash/notes.txt" in done.stdout
    content = bytearray((place / "images/it.oci.tar").read_bytes())
    content[100] ^= 4
    (place / "images/it.oci.tar").write_bytes(content)
    (place / "empty").unlink()
    assert sh(place / "verify.sh", shell=shell).returncode == 12
    (place / "empty").touch()
    done = sh(place / "verify.sh", shell=shell)
    assert done.returncode == 11 and "images/it.oci.tar" in done.stderr and "1 of" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_volumes_in_any_order_one_at_a_time_or_together(
    bundle: Path, volumes: list[Path], shell: str, tmp_path: Path
) -> None:
    out = tmp_path / "put together"
    assert len(volumes) >= 4
    for volume in reversed(volumes[1:]):
        done = sh(volume / "assemble.sh", "-o", out, volume, shell=shell)
        assert done.returncode == 12, done.stderr
    assert f"of {len(volumes)}: 1\n" in done.stderr and "the volumes that have not been seen yet" in done.stderr
    done = sh(volumes[0] / "assemble.sh", "-o", out, volumes[0], shell=shell)
    assert done.returncode == 0, done.stderr
    assert tree(out) == tree(bundle)
    assert sh(out / "verify.sh", shell=shell).returncode == 0
    # All of them, found beside the first.
    other = tmp_path / "other"
    assert sh(volumes[2] / "assemble.sh", "-o", other, shell=shell).returncode == 0
    assert tree(other) == tree(bundle)


def test_bit_rot_in_what_was_put_together_is_repaired(bundle: Path, volumes: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assemble = (volumes[0] / "assemble.sh", "-o", out, *volumes)
    assert sh(*assemble).returncode == 0
    for name in ("images/it.oci.tar", "wheels/b~1+c.whl"):
        content = bytearray((out / name).read_bytes())
        content[-7] ^= 1
        (out / name).write_bytes(content)
    (out / "rpms/Packages/a-1.rpm").unlink()
    done = sh(*assemble)
    assert done.returncode == 0 and "files: 3 copied" in done.stdout
    assert tree(out) == tree(bundle)


def test_a_damaged_volume_is_named_and_the_rest_is_taken(bundle: Path, volumes: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    (piece,) = tmp_path.rglob("chunks/*.002")
    (whole,) = tmp_path.rglob("a-1.rpm")
    good = {path: path.read_bytes() for path in (piece, whole)}
    for path, content in good.items():
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = sh(volumes[0] / "assemble.sh", "-o", out, *volumes)
    assert done.returncode == 11 and str(piece) in done.stderr and str(whole) in done.stderr, done.stderr
    assert (out / "wheels/b~1+c.whl").exists()
    assert not (out / "images/it.oci.tar").exists() and not (out / "rpms/Packages/a-1.rpm").exists()
    for path, content in good.items():
        path.write_bytes(content)
    # What was put aside of the large file is lost; nothing stands for it.
    (out / "images/it.oci.tar.part").unlink()
    assert sh(volumes[0] / "assemble.sh", "-o", out, *volumes).returncode == 0
    assert tree(out) == tree(bundle)
    (volumes[1] / "SHA256SUMS").write_text((volumes[1] / "SHA256SUMS").read_text() + "\n")
    done = sh(volumes[0] / "assemble.sh", "-o", tmp_path / "new", *volumes)
    assert done.returncode == 11 and f"{volumes[1]}/SHA256SUMS is damaged" in done.stderr


def test_a_volume_of_another_bundle_is_named(bundle: Path, volumes: list[Path], maker: Key, tmp_path: Path) -> None:
    other = Path(shutil.copytree(bundle, tmp_path / "changed" / "small"))
    (other / "empty").write_text("not any more")
    seal(other, maker)
    (foreign, *_) = split(other, tmp_path / "changed", 100_000)
    done = sh(volumes[0] / "assemble.sh", "-o", tmp_path / "out", volumes[0], foreign)
    assert done.returncode == 13 and str(foreign) in done.stderr and not (tmp_path / "out").exists()
    assert sh(volumes[0] / "assemble.sh", "-o", tmp_path / "out", volumes[0]).returncode == 12
    done = sh(foreign / "assemble.sh", "-o", tmp_path / "out", foreign)
    assert done.returncode == 13 and "holds another bundle" in done.stderr


def killed(argv: list[str], until: Callable[[], bool]) -> None:
    """Start a script, and kill -9 it and all that it started as soon as a condition holds."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not until() and process.poll() is None:
        pass
    os.killpg(process.pid, 9) if process.poll() is None else None
    process.wait()


def test_kills_at_any_moment_leave_what_a_rerun_completes(bundle: Path, volumes: list[Path], tmp_path: Path) -> None:
    argv = [str(each) for each in ("sh", volumes[0] / "assemble.sh", "-o", tmp_path / "out", *volumes)]
    out = tmp_path / "out"
    for moment in ("images/it.oci.tar.part", "images/it.oci.tar", "rpms/Packages/a-1.rpm", "wheels"):
        killed(argv, lambda moment=moment: (out / moment).exists())  # type: ignore[misc]
    assert subprocess.run(argv, capture_output=True, timeout=120).returncode == 0
    assert tree(out) == tree(bundle)


def test_a_full_disk_is_told_and_a_rerun_goes_on(
    engine: DockerEngine, base: str, bundle: Path, volumes: list[Path], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    names = " ".join(f"/media/{volume.name}" for volume in volumes)
    command = f"sh /media/{volumes[0].name}/assemble.sh -o /srv/out {names} 2>&1"
    binds = {volume: f"/media/{volume.name}" for volume in volumes}
    with offline_host.host(engine, base, binds, cap_add=["SYS_ADMIN"], tmpfs={"/srv": "size=300k"},
                           security_opt=["apparmor=unconfined"]) as host:  # fmt: skip
        code, said = host.run(command)
        assert code == 21 and "/srv is full" in said and "run the same again" in said, said
        assert host.run("find /srv/out -name '*.part' -size +0 ! -path '*/images/*' | grep .")[0] == 1
        host.good("mount -o remount,size=3m /srv")
        assert "there already" in host.good(command)
        made = host.good("cd /srv/out && sha256sum -c --quiet SHA256SUMS && sha256sum < SHA256SUMS && ls -A").split()
    assert made[0] == digest(bundle / "SHA256SUMS") and ".assemble" not in made


def test_a_differential_bundle_takes_the_rest_from_its_base(bundle: Path, maker: Key, tmp_path: Path) -> None:
    """What was renamed is found by its sum, and any other bundle than the base is refused."""
    new = Path(shutil.copytree(bundle, tmp_path / "whole"))
    (new / "wheels/b~1+c.whl").write_bytes(b"a new wheel")
    (new / "rpms/Packages/a-1.rpm").rename(new / "rpms/Packages/renamed-1.rpm")
    with (new / "bundle.conf").open("a") as file:
        file.write(f"base_sums {digest(bundle / 'SHA256SUMS')}\n")
    seal(new, maker)
    difference = Path(shutil.copytree(new, tmp_path / "difference"))
    for name in ("images/it.oci.tar", "rpms/Packages/renamed-1.rpm", "empty"):
        (difference / name).unlink()
    told = sh(difference / "verify.sh")
    assert told.returncode == 12 and "--base OLD" in told.stderr and digest(bundle / "SHA256SUMS") in told.stderr
    out = tmp_path / "out"
    alone = sh(difference / "assemble.sh", "-o", out, difference)
    assert alone.returncode == 12 and "--base BUNDLE" in alone.stderr
    wrong = sh(difference / "assemble.sh", "-o", out, "--base", new, difference)
    assert wrong.returncode == 13 and "not the bundle that this one was made from" in wrong.stderr
    done = sh(difference / "assemble.sh", "-o", out, "--base", bundle, difference)
    assert done.returncode == 0, done.stderr
    assert tree(out) == tree(new)


def test_hostile_volumes_write_nowhere_else(bundle: Path, volumes: list[Path], maker: Key, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    sums = (bundle / "SHA256SUMS").read_text()
    for line in ("../victim/x", "/etc/x", "a/../../victim/x", "-rf", ".ssh/x", "a b", "a//b"):
        folder = Path(shutil.copytree(bundle, tmp_path / f"hostile{abs(hash(line))}"))
        (folder / "SHA256SUMS").write_text(f"{sums}{'0' * 64}  {line}\n")
        sign(maker, folder / "SHA256SUMS")
        assert sh(folder / "assemble.sh", "-o", tmp_path / "out", folder).returncode == 11
        assert sh(folder / "verify.sh").returncode == 11
    out = tmp_path / "planted"
    out.mkdir()
    (out / "images").symlink_to(victim)
    done = sh(volumes[0] / "assemble.sh", "-o", out, *volumes)
    assert done.returncode == 11 and "links or devices" in done.stderr
    linked = Path(shutil.copytree(bundle, tmp_path / "linked"))
    (linked / "empty").unlink()
    (linked / "empty").symlink_to("/etc/hostname")
    assert sh(linked / "assemble.sh", "-o", tmp_path / "out", linked).returncode == 11
    assert list(victim.iterdir()) == []
