"""Programs that compile: who would call which one, what version it is, and whether it works."""

import os
import re
import shlex

from .common import describe, is_program, real, run, unique, version_in

_SHELL = ("c++", "g++", "gcc", "cc", "ld", "nvcc", "ninja", "cmake", "clang++", "pdsh", "ssh", "mpirun", "numactl",
          "docker", "podman")  # fmt: skip
_VARIABLES = ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN", "PYTORCH_NVCC")
_WRAPPERS = ("ccache", "sccache", "distcc", "icecc", "env", "time", "nice")
_VERSION_SECONDS = 10.0
_COMPILE_SECONDS = 30.0
# Uses the standard library, strings and exceptions: what an op would.
_PROGRAM = """#include <iostream>
#include <stdexcept>
#include <string>
int main(int argc, char **) {
    try {
        throw std::runtime_error(std::string("works ") + std::to_string(argc));
    } catch (const std::exception &error) {
        std::cout << error.what() << std::endl;
    }
    return 0;
}
"""


def wanted(host, build, cuda_home):
    """Whom to look for: (name, role, path or None).

    Args:
        host: The machine.
        build: sysconfig's variables of the examined interpreter.
        cuda_home: The toolkit that torch would take, or None.
    """
    found = [(name, "shell", host.which(name)) for name in _SHELL]
    found += [(name, name, _program(host, host.environ[name])) for name in _VARIABLES if host.environ.get(name)]
    found += [(name, "sysconfig", _program(host, build[name])) for name in ("CC", "CXX") if build.get(name)]
    if cuda_home:
        nvcc = os.path.join(cuda_home, "bin", "nvcc")
        found.append(("nvcc", "cuda_home", nvcc if is_program(nvcc) else None))
    return found


def _program(host, command):
    """The compiler of a command such as ``ccache g++ -pthread``: what wraps it makes no code."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    words = [word for word in words if os.path.basename(word) not in _WRAPPERS]
    return host.which(words[0]) if words else None


def tools(host, wishes, pool):
    """Every program with its version; each file is asked once, all at the same time."""
    paths = unique(path for _, _, path in wishes if path)
    asked = dict(zip(paths, pool.map(lambda path: asked_version(path, host.environ), paths)))
    found = []
    for name, role, path in wishes:
        answer = asked.get(path, {}) if path else {"error": "not found"}
        found.append(dict({"name": name, "role": role, "path": path, "real": real(path) if path else None}, **answer))
    return found


def asked_version(path, environ):
    """What a program says of its version, within some seconds."""
    flag = "-V" if os.path.basename(path) in ("ssh", "pdsh") else "--version"
    if os.path.basename(path) == "numactl":
        flag = "--show"
    environ = dict(environ, LC_ALL="C")
    done = run([path, flag], environ, _VERSION_SECONDS, merged=True)
    lines = done.lines
    error = done.explain(_VERSION_SECONDS)
    found = {"version": parsed(lines), "says": lines[0][:200] if lines else None}
    if error:
        found["error"] = error
        found["version"] = None
    return found


def parsed(lines):
    """The version in what a tool prints. nvcc has it in its fourth line, compilers at the end of the first.

    The first line of GCC names the distribution's package in brackets, whose number may be another than the
    compiler's: ``gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0``, ``ld version 2.30-125.el8``.
    """
    for line in lines:
        release = re.search(r"release [\d.]+, V(\d[\d.]*)", line)
        if release:
            return release.group(1)
    first = lines[0] if lines else ""
    return version_in(re.sub(r"\([^()]*\)", " ", first)) or version_in(first)


def compilers(found):
    """The C++ compilers that may be called, each file once, a link and its target counting as one."""
    paths = [
        each["path"]
        for each in found
        if each["path"] and not each.get("error")
        and (each["name"] in ("c++", "g++") or (each["name"] == "CXX" and each["role"] in ("CXX", "sysconfig")))
    ]  # fmt: skip
    kept = {}
    for path in paths:
        kept.setdefault(real(path), path)
    return list(kept.values())


def compiles(paths, host, folder, pool):
    """A small program, compiled and run with each of the compilers."""
    if not folder:
        return []
    return list(pool.map(lambda item: _compile(item[0], item[1], host, folder), enumerate(paths)))


def _compile(number, path, host, folder):
    place = os.path.join(folder, "compile{}".format(number))
    try:
        os.mkdir(place)
        source, program = os.path.join(place, "program.cpp"), os.path.join(place, "program")
        with open(source, "w") as stream:
            stream.write(_PROGRAM)
        environ = dict(host.environ, LC_ALL="C", CCACHE_DISABLE="1", TMPDIR=place)
        done = run([path, source, "-o", program], environ, _COMPILE_SECONDS, cwd=place, merged=True)
        if done.explain(_COMPILE_SECONDS):
            return {"compiler": path, "works": False, "error": _told(done, "compiling", place)}
        # Under the user's own LD_LIBRARY_PATH: that is how an op meets its libstdc++.
        ran = run([program], host.environ, _VERSION_SECONDS, cwd=place, merged=True)
        if ran.explain(_VERSION_SECONDS) or "works 1" not in ran.out:
            # A temporary folder that is mounted noexec says nothing about the compiler.
            if "Permission denied" in ran.error:
                return {"compiler": path, "works": True, "error": "compiled, not run: {}".format(ran.error)}
            return {"compiler": path, "works": False, "error": _told(ran, "running what it made", place)}
        return {"compiler": path, "works": True, "error": None}
    except (OSError, ValueError) as error:
        return {"compiler": path, "works": False, "error": describe(error)}


def _told(done, doing, place):
    lines = [line for line in done.lines if re.search(r"error|cannot|not found|undefined|No such|fatal", line, re.I)]
    reason = lines[0][:300] if lines else done.explain(_COMPILE_SECONDS)
    reason = (reason or "it printed something else than it should").replace(place + "/", "")
    return "{}: {}".format(doing, reason)


def alternatives(host):
    """The links of update-alternatives, of Debian's (/etc/alternatives) and of RedHat's kind, for compilers."""
    found = []
    for name in host.names("/etc/alternatives"):
        if not re.match(r"(?:gcc|g\+\+|cc|c\+\+|c89|c99|cpp|ld|nvcc|cuda(?:-\d+)?|python3?|clang(?:\+\+)?)\Z", name):
            continue
        try:
            value = os.readlink(host.path("/etc/alternatives/" + name))
        except OSError:
            continue
        links = ("/usr/bin/" + name, "/usr/local/" + name, "/bin/" + name)
        link = next((each for each in links if _leads(host.path(each), "/etc/alternatives/" + name)), links[0])
        found.append({"name": name, "link": link, "value": value})
    return found


def _leads(link, target):
    try:
        return os.readlink(link) == target
    except OSError:
        return False
