"""Rules about the system's own libraries, below all wheels: the C library, the C++ library and its string ABI."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts, Libraries
from envbuild.facts.versions import parse
from envbuild.matrix.rules.bases import Root, roots
from envbuild.matrix.rules.problem import Problem, either, unchecked, unknown
from envbuild.model import Environment, Severity


def glibc_of_base(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R13: torch's wheel loads on the C library of every base that the row may be made from."""
    needs = [facts.torch_libraries(env.torch.version, env.torch.build, platform) for platform in env.platforms]
    known = [need for need in needs if need is not None]
    if len(known) < len(needs):
        version, ends = env.torch.version, [end for e in facts.libraries for end in (e.since, e.through)]
        yield unknown(("torch", "version"), f"torch {version}", "the glibc it needs", known=ends, near=version)
        return
    need = max(known, key=lambda entry: parse(entry.glibc))
    for root in roots(env, facts):
        key, name, release = root.key, root.name, root.release
        if release is None:
            yield unknown(key, f"the base {name} of family {env.family}", "its glibc", known=facts.releases)
        elif parse(release.glibc) < parse(need.glibc):
            older = [e.through for e in facts.libraries if parse(e.glibc) <= parse(release.glibc) and not e.build]
            newer = [n for n, r in facts.releases.items() if parse(r.glibc) >= parse(need.glibc)]
            yield Problem(
                key=key,
                message=f"{name} has glibc {release.glibc}, torch {env.torch_version} needs {need.glibc}",
                fix=either(
                    f"use a base with glibc {need.glibc} or newer ({', '.join(newer)})",
                    f"torch {max(older, key=parse)} or older" if older else "",
                ),
                facts=(release, need),
            )


def symbols_of_base(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R14: each base's libstdc++ has the symbol versions that torch asks for, compared as numbers; and the ops, which
    are compiled in the toolkit's image, do not come from a newer system than they run on.

    This is what the facts say before anything is built. What the ops really ask for is measured in the image.
    """
    needs = [need for need in _needs(env, facts) if need.glibcxx and need.cxxabi]
    for root in roots(env, facts):
        library = facts.runtimes.get(facts.name_of(root.release)) if root.release else None
        if root.release and library is None:
            message = f"which symbol versions the libstdc++ of {root.name} has is unknown to the facts, unverified"
            yield unchecked(root.key, message)
        for need in needs if library else ():
            assert library
            pairs = (("GLIBCXX", need.glibcxx, library.glibcxx), ("CXXABI", need.cxxabi, library.cxxabi))
            lacking = [(n, wanted, there) for n, wanted, there in pairs if wanted and parse(there) < parse(wanted)]
            if lacking:
                wants = " and ".join(f"{n}_{wanted}" for n, wanted, _ in lacking)
                has = " and ".join(f"{n}_{there}" for n, _, there in lacking)
                newer = [
                    n
                    for n, r in facts.runtimes.items()
                    if n in facts.releases and parse(r.glibcxx) >= parse(need.glibcxx or "0")
                ]
                yield Problem(
                    key=root.key,
                    message=f"the libstdc++ of {root.name} ends at {has}, torch {env.torch_version} needs {wants}",
                    fix=f"use a base with a newer libstdc++ ({', '.join(newer)})",
                    facts=(library, need),
                )
                break
    yield from _ops_from_a_newer_system(env, facts)


def _ops_from_a_newer_system(env: Environment, facts: Facts) -> Iterator[Problem]:
    known = [root for root in roots(env, facts) if root.release]
    compiles = next((root for root in known if root.toolkit), None)
    if compiles is None or not env.deepspeed.ops:
        return
    for root in known:
        if root.toolkit or parse(_glibc(root)) >= parse(_glibc(compiles)):
            continue
        yield Problem(
            key=compiles.key,
            severity=Severity.WARNING,
            message=f"the ops are compiled in {compiles.name} (glibc {_glibc(compiles)}) and run on {root.name} "
            f"(glibc {_glibc(root)}), which may lack symbol versions that they ask for",
            fix=f"use a toolkit image of the base's own release, {facts.name_of(root.release)}" if root.release else "",
            facts=tuple(r.release for r in (compiles, root) if r.release),
        )
        break


def _glibc(root: Root) -> str:
    return root.release.glibc if root.release else "0"


def string_abi_of_compiler(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R15: the compiler can write the C++ string ABI that torch is built with.

    The devtoolsets of Enterprise Linux 7 always write the old one, whatever the flag says.
    """
    if not env.gcc.package.startswith("devtoolset"):
        return
    for need in _needs(env, facts):
        if need.cxx11_abi == "new":
            older = [e.through for e in facts.libraries if e.cxx11_abi == "old"]
            yield Problem(
                key=("gcc", "package"),
                message=f"{env.gcc.package} always uses the old C++ string ABI, torch {env.torch_version} the new one: "
                "no op that takes a string from torch would load",
                fix=either(
                    f"use torch {max(older, key=parse)} or older" if older else "",
                    "a base of Enterprise Linux 8 or newer with gcc-toolset",
                ),
                facts=(need,),
            )
            return


def _needs(env: Environment, facts: Facts) -> list[Libraries]:
    found = [facts.torch_libraries(env.torch.version, env.torch.build, platform) for platform in env.platforms]
    return [need for need in found if need is not None]
