"""The operating system's packages that matter here, and what its package manager did last. Read, or asked."""

import os
import re
import time

from .common import opened, run

_INTEREST = re.compile(
    r"(?:lib)?(?:stdc\+\+|glibc|c6|c-bin|c6-dev|gcc|g\+\+|gcc-c\+\+|gfortran|binutils|aio|nvidia|cuda|nccl|cudnn|cublas|"
    r"curand|cufft|cusparse|cusolver|nvjitlink|nvrtc|nvml|numa|ibverbs|rdmacm|rdma|mlnx|ofed|openmpi|ucx|infiniband|"
    r"kernel|linux-image|linux-headers|ninja|python3|cmake|pdsh|openssh-client|gds|gdrcopy|xnvme|devtoolset|"
    r"a?kmod-nvidia|dkms|selinux|container-selinux|docker|containerd|podman|libgomp|gomp|expat|crypto|ssl)"
)
_RPM_SECONDS = 20.0
_STATUS_BYTES, _LOG_BYTES = 64 << 20, 1 << 20
_TRANSACTIONS, _PACKAGES = 60, 1500


def system(host, environ):
    """Packages, manager and transactions; all of it is empty where no manager has a database."""
    if host.exists("/var/lib/dpkg/status") or host.exists("/var/lib/dpkg/status.d"):
        return {"manager": "dpkg", "packages": dpkg(host), "transactions": dpkg_log(host)}
    places = ("/var/lib/rpm", "/usr/lib/sysimage/rpm", "/usr/share/rpm")
    if any(host.names(place) for place in places) and host.which("rpm"):
        packages, transactions = rpm(environ)
        return {"manager": "rpm", "packages": packages, "transactions": transactions}
    return {"manager": None, "packages": {}, "transactions": []}


def interesting(name):
    """Whether a package has a say in how native code runs."""
    return bool(_INTEREST.match(name))


def dpkg(host):
    """Installed packages of interest (deb822, as dpkg's status has it); in images without dpkg a file for each."""
    texts = [host.text("/var/lib/dpkg/status", _STATUS_BYTES) or ""]
    texts += [
        host.text("/var/lib/dpkg/status.d/" + name) or ""
        for name in host.names("/var/lib/dpkg/status.d")
        if not name.endswith(".md5sums")
    ]
    found = {}
    for text in texts:
        for stanza in re.split(r"\n\n+", text):
            name = re.match(r"(?:.*\n)*?Package: *(\S+)", stanza)
            if not name or not interesting(name.group(1)) or len(found) >= _PACKAGES:
                continue
            status = re.search(r"^Status: .*$", stanza, re.M)
            version = re.search(r"^Version: *(\S+)", stanza, re.M)
            if version and (status is None or status.group(0).endswith(" installed")):
                architecture = re.search(r"^Architecture: *(\S+)", stanza, re.M)
                key = name.group(1)
                if key in found and architecture:
                    key += ":" + architecture.group(1)
                found[key] = version.group(1)
    return found


def dpkg_log(host):
    """The last changes: ``2026-11-28 10:15:01 upgrade libaio1:amd64 0.3.113-4 0.3.113-5`` is what a line is like."""
    found = []
    for name in ("dpkg.log.1", "dpkg.log"):
        for line in _tail(host.path("/var/log/" + name)).splitlines():
            words = line.split()
            if len(words) == 6 and words[2] in ("install", "upgrade", "remove", "purge"):
                package = words[3].partition(":")[0]
                if interesting(package):
                    change = " -> ".join(word for word in words[4:6] if word != "<none>")
                    found.append("{} {} {} {} {}".format(words[0], words[1], words[2], package, change))
    return found[-_TRANSACTIONS:]


def _tail(path):
    try:
        with opened(path) as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_BYTES))
            return stream.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def rpm(environ):
    """Installed packages of interest, and the last ones that were installed: rpm keeps no log of its own."""
    form = "%{INSTALLTIME} %{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE} %{ARCH}\\n"
    done = run(["rpm", "-qa", "--queryformat", form], dict(environ, LC_ALL="C"), _RPM_SECONDS)
    if done.explain(_RPM_SECONDS):
        raise ValueError("rpm -qa: " + done.explain(_RPM_SECONDS))
    return parsed(done.lines)


def parsed(lines):
    """rpm's lines as (packages, transactions), the times in UTC."""
    found, installed = {}, []
    for line in lines:
        words = line.split()
        if len(words) == 4 and words[0].isdigit() and interesting(words[1]) and len(found) < _PACKAGES:
            version = re.sub(r"\A0:", "", words[2])
            key = words[1] if words[1] not in found else "{}.{}".format(words[1], words[3])
            found[key] = version
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(words[0])))
            installed.append((int(words[0]), "{} install {} {}".format(when, words[1], version)))
    return found, [text for _, text in sorted(installed)][-_TRANSACTIONS:]
