"""The solver, as a program of its own: JSON on stdin, JSON on stdout, nothing of envbuild imported.

libsolv is C that reads what strangers wrote: here it may crash, or want all the memory there is, and takes nobody with
it. The flags are those of libdnf (libdnf/goal/Goal.cpp, initSolver), so that the answer is dnf's own.
"""

from __future__ import annotations

import fnmatch
import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import solv

# libsolv's number for it (src/solver.h): the Python bindings do not name it.
_URPM_REORDER = 23
# dnf.conf(5), installonlypkgs: these are installed beside their older versions.
_BESIDE = (
    "kernel", "kernel-PAE", "installonlypkg(kernel)", "installonlypkg(kernel-module)", "installonlypkg(vm)",
    "multiversion(kernel)",
)  # fmt: skip
_RELATIONS = {
    "<": solv.REL_LT,
    ">": solv.REL_GT,
    "=": solv.REL_EQ,
    "<=": solv.REL_LT | solv.REL_EQ,
    ">=": solv.REL_GT | solv.REL_EQ,
}


class _World:
    """Every repository, loaded once for all targets."""

    def __init__(self, question: dict[str, Any]) -> None:
        pool = self.pool = solv.Pool()
        pool.setdisttype(solv.Pool.DISTTYPE_RPM)
        pool.setarch(question["arch"])
        # Which packages count differs from target to target; what provides what does not.
        pool.set_flag(solv.Pool.POOL_FLAG_WHATPROVIDESWITHDISABLED, 1)
        self.names: dict[int, str] = {}
        self.hotfixes: set[int] = set()
        excluded: set[int] = set()
        for each in question["repositories"]:
            repo = pool.add_repo(each["id"])
            # dnf's best priority is the lowest number, libsolv's the highest.
            repo.priority = -each["priority"]
            _load(repo, each)
            self.names[repo.id] = each["id"]
            if each["hotfixes"]:
                self.hotfixes.add(repo.id)
            if each["excludes"] or each["includes"]:
                excluded.update(_excluded(repo, each["excludes"], each["includes"]))
        self.excluded = frozenset(excluded)
        self.small = frozenset(question["small_arches"])

    def available(self) -> Iterator[Any]:
        for repo in self.pool.repos:
            if repo.id in self.names:
                yield from repo.solvables_iter()


def _load(repo: Any, each: dict[str, Any]) -> None:
    for path, flags in ((each["primary"], 0), (each["filelists"], solv.Repo.REPO_EXTEND_SOLVABLES)):
        if path:
            file = solv.xfopen(path)
            if file is None or not repo.add_rpmmd(file, None, flags):
                raise _Unreadable(each["id"], repo.pool.errstr or "it is no metadata")
            file.close()


class _Unreadable(Exception):
    pass


def _excluded(repo: Any, excludes: list[str], includes: list[str]) -> Iterator[int]:
    """What a repository's own configuration leaves out."""

    def fits(solvable: Any, patterns: list[str]) -> bool:
        name = solvable.name
        texts = (name, f"{name}.{solvable.arch}", f"{name}-{solvable.evr}", f"{name}-{solvable.evr}.{solvable.arch}")
        return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in texts)

    for solvable in repo.solvables_iter():
        if fits(solvable, excludes) or (includes and not fits(solvable, includes)):
            yield solvable.id


def _dependency(pool: Any, text: str) -> Any:
    """A dependency as rpm writes it: ``name``, ``name >= evr``, or a rich one in parentheses."""
    if text.startswith("("):
        return pool.parserpmrichdep(text)
    name, _, rest = text.partition(" ")
    relation, _, evr = rest.strip().partition(" ")
    if relation in _RELATIONS and evr.strip():
        return pool.rel2id(pool.str2id(name), pool.str2id(evr.strip()), _RELATIONS[relation])
    return pool.str2id(name)


def _installed(pool: Any, packages: list[dict[str, Any]]) -> Any:
    """What a target has, as a repository."""
    repo = pool.add_repo("@System")
    data = repo.add_repodata()
    for each in packages:
        solvable = repo.add_solvable()
        solvable.name, solvable.evr, solvable.arch = each["name"], each["evr"], each["arch"]
        solvable.add_provides(pool.rel2id(solvable.nameid, solvable.evrid, solv.REL_EQ))
        for kind in ("provides", "requires", "conflicts", "obsoletes"):
            add = getattr(solvable, f"add_{kind}")
            for text in each[kind]:
                found = _dependency(pool, text)
                if found:
                    add(found)
        for path in each["files"]:
            folder, _, base = path.rpartition("/")
            data.add_dirstr(solvable.id, solv.SOLVABLE_FILELIST, data.str2dir(folder or "/"), base)
    data.internalize()
    return repo


def _unwanted(world: _World, target: dict[str, Any], *, multilib: bool) -> set[int]:
    """Packages that do not count for a target: 32-bit ones, and those of streams that are not active."""
    out = set(world.excluded)
    if not multilib and world.small:
        kept = {each["name"] for each in target["installed"] if each["arch"] in world.small}
        for solvable in world.available():
            if solvable.arch in world.small and solvable.name not in kept:
                out.add(solvable.id)
    inactive, active, names = set(target["inactive"]), set(target["active"]), set(target["names"])
    if not (inactive or active):
        return out
    kept_ids = set()
    for solvable in world.available():
        full = f"{solvable.name}-{_whole(solvable.evr)}.{solvable.arch}"
        if solvable.repo.id in world.hotfixes or full in active:
            kept_ids.add(solvable.id)
        elif full in inactive:
            out.add(solvable.id)
    # Whatever provides what a stream's package is called goes, first of all a package of that name
    # (dnf.modularity(7), "Package filtering").
    for name in names:
        for solvable in world.pool.whatprovides(world.pool.str2id(name)):
            if solvable.repo.id in world.names and solvable.id not in kept_ids:
                out.add(solvable.id)
    return out


def _whole(evr: str) -> str:
    """With the epoch, which a module's list of artifacts always has."""
    return evr if ":" in evr else f"0:{evr}"


def _jobs(world: _World, roots: Iterable[str]) -> tuple[list[Any], list[str]]:
    pool, selection = world.pool, solv.Selection
    kinds = (
        selection.SELECTION_NAME | selection.SELECTION_CANON | selection.SELECTION_DOTARCH | selection.SELECTION_REL,
        selection.SELECTION_PROVIDES | selection.SELECTION_REL,
        selection.SELECTION_FILELIST,
    )
    jobs, missing = [], []
    for root in roots:
        for kind in kinds:
            found = pool.select(root, kind)
            if not found.isempty():
                jobs += found.jobs(solv.Job.SOLVER_INSTALL | solv.Job.SOLVER_FORCEBEST)
                break
        else:
            missing.append(root)
    for name in _BESIDE:
        jobs.append(pool.Job(solv.Job.SOLVER_MULTIVERSION | solv.Job.SOLVER_SOLVABLE_PROVIDES, pool.str2id(name)))
    return jobs, missing


def _solver(pool: Any) -> Any:
    solver = pool.Solver()
    for flag in (
        solver.SOLVER_FLAG_ALLOW_VENDORCHANGE, solver.SOLVER_FLAG_KEEP_ORPHANS, solver.SOLVER_FLAG_BEST_OBEY_POLICY,
        solver.SOLVER_FLAG_YUM_OBSOLETES, solver.SOLVER_FLAG_IGNORE_RECOMMENDED, _URPM_REORDER,
    ):  # fmt: skip
        solver.set_flag(flag, 1)
    return solver


def _solve(world: _World, target: dict[str, Any], roots: list[str], *, multilib: bool) -> dict[str, Any]:
    """One target's closure, or why there is none."""
    pool = world.pool
    repo = _installed(pool, target["installed"])
    pool.installed = repo
    try:
        pool.addfileprovides()
        # Before anything is selected: a selection by what is provided crashes without (libsolv 0.7.39).
        pool.createwhatprovides()
        asked = [root for root in roots if root.rpartition(".")[2] in world.small]
        pool.set_disabled_list(sorted(_unwanted(world, target, multilib=multilib or bool(asked))))
        jobs, missing = _jobs(world, roots)
        answer: dict[str, Any] = {
            "name": target["name"],
            "missing": missing,
            "near": {},
            "problems": [],
            "helps": False,
        }
        if missing:
            import difflib

            names = {solvable.name for solvable in world.available()}
            answer["near"] = {root: difflib.get_close_matches(root, names, 3, 0.7) for root in missing[:20]}
        solver = _solver(pool)
        problems = solver.solve(jobs)
        if problems:
            answer["problems"] = [text for problem in problems for text in _reasons(problem)]
            if not multilib and world.small:
                pool.set_disabled_list(sorted(_unwanted(world, target, multilib=True)))
                answer["helps"] = not _solver(pool).solve(_jobs(world, roots)[0])
            return answer
        return {**answer, **_steps(world, solver.transaction())}
    finally:
        # The list belongs to the packages that are there now: it does not grow with the next target's.
        pool.set_disabled_list([])
        pool.installed = None
        repo.free(True)


def _reasons(problem: Any) -> list[str]:
    said = [info.problemstr() for rule in problem.findallproblemrules() for info in rule.allinfos()]
    return list(dict.fromkeys(said))[:20]


def _steps(world: _World, transaction: Any) -> dict[str, Any]:
    show = transaction.SOLVER_TRANSACTION_SHOW_OBSOLETES | transaction.SOLVER_TRANSACTION_CHANGE_IS_REINSTALL
    gone: dict[str, list[str]] = {"erases": [], "replaces": [], "downgrades": []}
    kinds = {
        transaction.SOLVER_TRANSACTION_ERASE: "erases",
        transaction.SOLVER_TRANSACTION_OBSOLETED: "replaces",
        transaction.SOLVER_TRANSACTION_DOWNGRADED: "downgrades",
    }
    for solvable in transaction.steps():
        kind = kinds.get(transaction.steptype(solvable, show))
        if kind is not None and solvable.repo.id not in world.names:
            gone[kind].append(str(solvable))
    return {**gone, "installs": [_package(world, solvable) for solvable in transaction.newsolvables()]}


def _package(world: _World, solvable: Any) -> dict[str, Any]:
    checksum = solvable.lookup_checksum(solv.SOLVABLE_CHECKSUM)
    location = solvable.lookup_location()
    return {
        "name": solvable.name,
        "evr": solvable.evr,
        "arch": solvable.arch,
        "repository": world.names[solvable.repo.id],
        "checksum": [checksum.typestr(), checksum.hex()] if checksum else ["", ""],
        "location": location[0] if location else "",
        "base": solvable.lookup_str(solv.SOLVABLE_MEDIABASE) or "",
        "bytes": solvable.lookup_num(solv.SOLVABLE_DOWNLOADSIZE),
        "installed_bytes": solvable.lookup_num(solv.SOLVABLE_INSTALLSIZE),
        "licence": solvable.lookup_str(solv.SOLVABLE_LICENSE) or "",
        "source_rpm": solvable.lookup_sourcepkg() or "",
        "vendor": solvable.vendor or "",
        "summary": solvable.lookup_str(solv.SOLVABLE_SUMMARY) or "",
        "built": solvable.lookup_num(solv.SOLVABLE_BUILDTIME),
    }


def main() -> int:
    """Answer one question. Exit code 3 where a repository's metadata cannot be read."""
    # Whatever a library prints is not part of the answer.
    answer_to = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = question["memory_bytes"]
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        world = _World(question)
    except _Unreadable as error:
        document: dict[str, Any] = {"unreadable": error.args}
    else:
        document = {
            "packages": {repo.name: repo.nsolvables for repo in world.pool.repos},
            "targets": [
                _solve(world, target, question["roots"], multilib=question["multilib"])
                for target in question["targets"]
            ],
        }
    # Not getrusage(2): there a child has the size of whoever started it.
    status = Path("/proc/self/status").read_text()
    document["peak_bytes"] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    json.dump(document, answer_to)
    answer_to.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
