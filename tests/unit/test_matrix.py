"""The matrix loader: what it makes of good files, and how it refuses bad ones."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from envbuild.errors import InputError
from envbuild.matrix import Matrix, MatrixError, load
from envbuild.matrix.load import parse
from envbuild.model import Severity

REPOSITORY = Path(__file__).parents[2]

GOOD = """\
schema: envbuild.matrix/1
environments:
  one:
    summary: A row
    accelerator: cpu
    requires: cpu
    family: debian
    base: {image: "debian:bookworm-slim"}
    python: 3.10
    gcc: {version: 12.2, package: gcc-12}
    torch: {version: 2.13.0, build: cpu}
    deepspeed: {version: 0.19.8, ops: [cpu_adam]}
    sources:
      base: &seen {mark: verified, source: measured, date: 2026-11-01}
      python: *seen
      gcc: *seen
      torch: *seen
      deepspeed: *seen
"""


def read(text: str | bytes) -> Matrix:
    return parse(text.encode() if isinstance(text, str) else text, "m.yaml")


def complaints(text: str | bytes) -> list[str]:
    """``line:column: subject: message`` of every finding."""
    with pytest.raises(MatrixError) as caught:
        read(text)
    findings = caught.value.findings
    assert caught.value.message == "\n".join(
        f"{f.file}:{f.line}:{f.column}: {f.subject}: {f.message}" for f in findings
    )
    assert {(f.rule, f.severity, f.file) for f in findings} == {("matrix", Severity.ERROR, "m.yaml")}
    return [f"{f.line}:{f.column}: {f.subject}: {f.message}" for f in findings]


def change(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


SHIPPED = [
    *("cpu", "v100-cu113", "a100-cu117", "a100-cu118", "rhel8-cu118", "h100-cu121", "h100-cu124", "h100-cu126"),
    *("v100-cu126", "b200-cu128", "h200-cu130", "b200-cu132"),
]


def test_shipped_matrix_loads() -> None:
    matrix = load(REPOSITORY / "matrix.yaml")
    assert list(matrix.environments) == SHIPPED
    for name, row in matrix.environments.items():
        assert row.required_level.value == ("cpu" if name == "cpu" else "gpu")


def test_every_value_stays_text() -> None:
    row = read(
        change("ops: [cpu_adam]}", "ops: [cpu_adam]}\n    env: {A: 010, B: yes, C: 1e3, D: 2026-01-01, E: null0}")
    )
    assert row.get("one").python == "3.10"
    assert row.get("one").gcc.version == "12.2"
    assert row.get("one").env == {"A": "010", "B": "yes", "C": "1e3", "D": "2026-01-01", "E": "null0"}


def test_booleans_and_empty_values() -> None:
    row = read(change("ops: [cpu_adam]}", "ops: [cpu_adam]}\n    nccl: ~\n    extras: [{requirement: x, build: true}]"))
    assert row.get("one").nccl is None
    assert row.get("one").extras[0].build is True


def test_get_suggests_and_lists() -> None:
    matrix = load(REPOSITORY / "matrix.yaml")
    with pytest.raises(InputError) as caught:
        matrix.get("a100-cu119")
    assert "no environment 'a100-cu119'" in caught.value.message
    assert caught.value.hint == f"Did you mean 'a100-cu118'? Environments: {', '.join(SHIPPED)}"


FAMILY = dedent(
    """\
    schema: envbuild.matrix/1
    defaults:
      family: debian
      env: {A: "1", B: "1"}
      packages: [vim]
    environments:
      child:
        extends: parent
        torch: {version: 2.12.0}
        env: {B: "2"}
        packages: [nano]
        sources: {gcc: {note: from the child}}
      parent:
        summary: The parent
        accelerator: cpu
        requires: cpu
        base: {image: "debian:12"}
        python: "3.11"
        gcc: {version: "12.2", package: gcc-12}
        torch: {version: 2.13.0, build: cpu}
        deepspeed: {version: 0.19.8, ops: []}
        sources:
          base: &seen {mark: verified, source: measured, date: 2026-11-01}
          python: *seen
          gcc: *seen
          torch: *seen
          deepspeed: *seen
    """
)


def test_mappings_merge_and_lists_replace() -> None:
    matrix = read(FAMILY)
    child, parent = matrix.get("child"), matrix.get("parent")
    assert (child.name, child.summary, child.family) == ("child", "The parent", "debian")
    assert (child.torch.version, child.torch.build) == ("2.12.0", "cpu")
    assert child.env == {"A": "1", "B": "2"} and parent.env == {"A": "1", "B": "1"}
    assert child.packages == ("nano",) and parent.packages == ("vim",)
    assert child.sources["gcc"].note == "from the child" and child.sources["torch"].note == ""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("torch", "version"), 9, 22),  # the row's own
        (("torch", "build"), 20, 37),  # inherited from the parent
        (("env", "A"), 4, 12),  # inherited from the defaults
        (("packages", 0), 11, 16),
        (("packages",), 11, 5),
        (("packages", 7), 11, 5),
        (("base", "digest"), 17, 5),  # absent: what would hold it
        (("base", "bootstrap", "suite"), 17, 5),
        (("nccl",), 7, 3),
        ((), 7, 3),
    ],
)
def test_place(path: tuple[str | int, ...], line: int, column: int) -> None:
    matrix = read(FAMILY)
    place = matrix.place("child", path)
    assert (place.file, place.line, place.column) == ("m.yaml", line, column)
    assert matrix.place(matrix.get("child"), path) == place


def test_all_errors_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("family: debian", "famly: debian").replace("accelerator: cpu", "accelerator: gpu")
    text = text.replace("version: 0.19.8", "version: newest").replace("gcc: *seen", "gc: *seen")
    assert complaints(text) == [
        "3:3: environments.one.family: is required",
        "5:18: environments.one.accelerator: 'gpu' is none of cpu, cuda; did you mean 'cpu'?",
        "7:5: environments.one.famly: is not a known key; did you mean 'family'?",
        "12:26: environments.one.deepspeed.version: 'newest' is not a version, such as 2.13.0",
        "13:5: environments.one.sources.gcc: is required: who says so, for the row's gcc?",
        "16:7: environments.one.sources.gc: 'gc' is not a key of a row; did you mean 'gcc'?",
    ]


def test_an_inherited_error_is_told_once() -> None:
    assert complaints(change("date: 2026-11-01", "date: monday")) == [
        "14:60: environments.one.sources.base.date: 'monday' is not a date, such as 2026-11-01"
    ]
    text = FAMILY.replace("  family: debian", "  famly: debian\n  family: debian")
    assert complaints(text) == ["3:3: environments.child.famly: is not a known key; did you mean 'family'?"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema: envbuild.matrix/1", "schema: envbuild.matrix/2",
         "1:9: schema: must be envbuild.matrix/1, not 'envbuild.matrix/2'"),
        ("schema: envbuild.matrix/1", "schema: [1]", "1:9: schema: must be envbuild.matrix/1, not this"),
        ("schema: envbuild.matrix/1\n", "", "1:1: schema: is required: envbuild.matrix/1"),
        ("schema: envbuild.matrix/1", "schema: envbuild.matrix/1\nenvironment: {}",
         "2:1: environment: is not a known key; did you mean 'environments'?"),
        ("  one:", "  One:", "3:3: environments.One: 'One' is not a name of small letters, digits and single hyphens, "
         "such as a100-cu118"),
        ("summary: A row", "name: other\n    summary: A row",
         "4:5: environments.one.name: is not a key of a row: a row's name is the key it stands under"),
        ("summary: A row", "summary: ", "4:13: environments.one.summary: is empty; give it a value or remove the key"),
        ("summary: A row", 'summary: "a\\nb"', "4:14: environments.one.summary: 'a\\nb' must be one printable line"),
        ("summary: A row", "summary: [a]", "4:5: environments.one.summary: must be text, not a list"),
        ("python: 3.10", "python: 3.10.1",
         "9:13: environments.one.python: '3.10.1' is not a version of two numbers, such as 3.11"),
        ("gcc: {version: 12.2, package: gcc-12}", "gcc: gcc-12",
         "10:10: environments.one.gcc: must be a mapping, not 'gcc-12'"),
        ("package: gcc-12}", "pakage: gcc-12, package: gcc-12}",
         "10:26: environments.one.gcc.pakage: is not a known key; did you mean 'package'?"),
        ("build: cpu}", "build: cpu, index: pypy}",
         "11:49: environments.one.torch.index: 'pypy' is none of pytorch, pypi; did you mean 'pypi'?"),
        ("family: debian", "family: debian\n    driver: newest",
         "8:13: environments.one.driver: 'newest' is not a version of numbers and dots, such as 450.80.02"),
        ("build: cpu}", "build: cpu, torchvision: 0.28.x}",
         "11:55: environments.one.torch.torchvision: '0.28.x' is not a version, such as 2.13.0"),
        ("package: gcc-12", "package: clang-16",
         "10:35: environments.one.gcc.package: 'clang-16' is not the package of a GCC, such as gcc-12 or "
         "gcc-toolset-11-gcc"),
        ("family: debian", "family: debian\n    waivers: [{rule: r21, reason: x, until: 2027-06-30}]",
         "8:22: environments.one.waivers.0.rule: 'r21' is not the id of a rule, such as R21"),
        ("family: debian", "family: debian\n    waivers: [{rule: R21, reason: x, until: soon}]",
         "8:45: environments.one.waivers.0.until: 'soon' is not a date, such as 2026-11-01"),
        ("family: debian", "family: debian\n    waivers: [{rule: R21, until: 2027-06-30}]",
         "8:15: environments.one.waivers.0.reason: is required"),
        ("family: debian", "family: debian\n    claimed: {gcc.versio: {value: x, by: y, contradicted: z}}",
         "8:15: environments.one.claimed.gcc.versio: 'versio' is not a key of gcc; did you mean 'version'?"),
        ("family: debian", "family: debian\n    claimed: {cpu_baseline: {value: x, by: y, contradicted: z}}",
         "8:15: environments.one.claimed.cpu_baseline: needs the evidence that contradicts it: an entry of sources for "
         "cpu_baseline"),
        ("ops: [cpu_adam]}", "ops: cpu_adam}", "12:39: environments.one.deepspeed.ops: must be a list, not 'cpu_adam'"),
        ("ops: [cpu_adam]}", "ops: [cpu_adam, 'a b']}",
         "12:50: environments.one.deepspeed.ops.1: 'a b' is not an op's name, such as cpu_adam"),
        ("family: debian", "family: debian\n    memlock: lots", "8:14: environments.one.memlock: 'lots' is not "
         "unlimited, and 'lots' is not a size, such as 512MiB or 1GiB"),
        ("family: debian", "family: debian\n    pins: [numpy<x]",
         "8:12: environments.one.pins.0: 'numpy<x' has no valid version part, such as <2 or ==1.26.4"),
        ("family: debian", "family: debian\n    extras: [{requirement: a, build: perhaps}]",
         "8:38: environments.one.extras.0.build: must be true or false, not 'perhaps'"),
        ("mark: verified, source: measured, date: 2026-11-01", "mark: sure, source: measured, date: 2026-11-01",
         "14:26: environments.one.sources.base.mark: 'sure' is none of verified, partial, unverified"),
        ("      torch: *seen", "      torch: *seen\n      torch.versio: *seen",
         "18:7: environments.one.sources.torch.versio: 'versio' is not a key of torch; did you mean 'version'?"),
        ("      torch: *seen\n", "",
         "13:5: environments.one.sources.torch: is required: who says so, for the row's torch?"),
        ("build: cpu}", "build: cu118}",
         "11:37: environments.one.torch.build: must be cpu when the accelerator is cpu, not 'cu118'"),
        ("family: debian", "family: debian\n    gpus: [a100]",
         "8:5: environments.one.gpus: has no meaning when the accelerator is cpu; remove it"),
        ("requires: cpu", "requires: gpu",
         "6:15: environments.one.requires: cannot be gpu when the accelerator is cpu"),
        ("family: debian", "family: debian\n    platforms: []",
         "8:5: environments.one.platforms: needs at least 1 item"),
        # The text itself.
        ("summary: A row", "summary: A row\n    summary: B",
         "5:5: environments.one.summary: is already set in line 4"),
        ("      deepspeed: *seen\n", "      deepspeed: *seen\n  one: {}\n",
         "19:3: environments.one: is already set in line 3"),
        ("summary: A row", "<<: {summary: A}\n    summary: A row",
         "4:5: environments.one: merge keys (<<) are not supported; use 'extends' or 'defaults'"),
        ("summary: A row", "~: x\n    summary: A row", "4:5: environments.one: a key must be text"),
        ("summary: A row", "? [a]\n    : x\n    summary: A row",
         "4:7: environments.one: a key must be text, not a list or a mapping"),
        ("summary: A row", "summary: !!python/object/apply:os.system [ls]",
         "4:14: environments.one.summary: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed; "
         "a matrix has texts, lists and mappings only"),
        ("summary: A row", "summary: !!str A",
         "4:14: environments.one.summary: the tag 'tag:yaml.org,2002:str' is not allowed; "
         "a matrix has texts, lists and mappings only"),
        ("python: *seen", "python: &me {mark: *me}",
         "15:26: environments.one.sources.python.mark: the alias *me refers to itself"),
        ("python: *seen", "python: *sen", "15:15: environments.one.sources.python: the alias *sen has no anchor"),
        ("      deepspeed: *seen\n", "      deepspeed: *seen\n---\na: b\n",
         "19:1: matrix: a second document begins here; a matrix is one document"),
        # Inheritance.
        ("summary: A row", "extends: two", "4:14: environments.one.extends: there is no row 'two'"),
        ("summary: A row", "extends: [one]", "4:14: environments.one.extends: must be the name of another row"),
        ("summary: A row", "extends: one", "4:14: environments.one.extends: runs in a circle: 'one' -> 'one'"),
        ("environments:\n", "defaults: {extends: one}\nenvironments:\n",
         "2:12: defaults.extends: belongs in a row; defaults lie beneath all"),
        ("environments:\n", "defaults: 1\nenvironments:\n", "2:1: defaults: must be a mapping, like a row"),
    ],
)  # fmt: skip
def test_one_mistake(old: str, new: str, expected: str) -> None:
    assert complaints(change(old, new)) == [expected]


def test_values_that_a_dockerfile_would_expand() -> None:
    found = complaints(change("family: debian", "family: debian\n    env: {A: 'x$y', B: 'x`y', C: \"x\\ny\", d: x}"))
    said = "has a character that is not allowed here: line break, quote, backslash, $ or `"
    assert found == [
        f"8:14: environments.one.env.A: 'x$y' {said}",
        f"8:24: environments.one.env.B: 'x`y' {said}",
        f"8:34: environments.one.env.C: 'x\\ny' {said}",
        "8:42: environments.one.env.d: 'd' is not the name of a variable: capital letters, digits and _",
    ]


def test_a_row_may_not_set_what_the_proof_stands_on() -> None:
    said = complaints(GOOD.replace("family: debian", "family: debian\n    env: {PYTHONPATH: /x, MINE: y, PATH: /z}"))
    assert [line.split(": ", 1)[1] for line in said] == [
        "environments.one.env.PYTHONPATH: is not a row's to set: the proof depends on it",
        "environments.one.env.PATH: is not a row's to set: the proof depends on it",
    ]


CUDA = GOOD.replace("accelerator: cpu", "accelerator: cuda").replace("requires: cpu", "requires: gpu")


def test_a_cuda_row_says_what_it_is() -> None:
    assert complaints(CUDA) == [
        "3:3: environments.one.cuda: is required when the accelerator is cuda",
        "3:3: environments.one.nccl: is required when the accelerator is cuda",
        "3:3: environments.one.gpus: is required when the accelerator is cuda",
    ]
    assert complaints(CUDA.replace("build: cpu", "build: CU13"))[-1] == (
        "11:37: environments.one.torch.build: 'CU13' is not a build variant: cpu, or cu and digits, such as cu118"
    )
    assert complaints(CUDA.replace("requires: gpu", "requires: cpu"))[-1].endswith(
        "environments.one.requires: must be gpu when the accelerator is cuda: its tag stands for a step on a GPU"
    )
    said = "cuda: {version: '13.0', toolkit: image}\n    nccl: 2.28.9\n    gpus: [h200]"
    assert complaints(CUDA.replace("family: debian", f"family: debian\n    {said}")) == [
        "11:5: environments.one.base.toolkit_image: is required when cuda.toolkit is image: the image that has nvcc",
        "16:5: environments.one.sources.cuda: is required: who says so, for the row's cuda?",
        "16:5: environments.one.sources.nccl: is required: who says so, for the row's nccl?",
        "16:5: environments.one.sources.gpus: is required: who says so, for the row's gpus?",
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "1:1: matrix: the file is empty"),
        (b"# nothing\n", "1:1: matrix: the file is empty"),
        (b"[a, b]", "1:1: matrix: must be a mapping with the keys schema, defaults, environments"),
        (b"text", "1:1: matrix: must be a mapping with the keys schema, defaults, environments"),
        (b"a:\n  b: \xff\n", "2:6: matrix: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("schema: x".encode("utf-16"), "1:1: matrix: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("schema: x".encode("utf-16-le"), "1:2: matrix: control character U+0000 is not allowed"),
        ("schema: x".encode("utf-32"), "1:1: matrix: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("# Größe\n".encode("latin-1"), "1:5: matrix: byte 0xf6 is not UTF-8; save the file as UTF-8"),
        ("a: \u20ac\nb: \u20ac\n".encode("cp1252"), "1:4: matrix: byte 0x80 is not UTF-8; save the file as UTF-8"),
        (b"a: b\nc: d\x00e\n", "2:5: matrix: control character U+0000 is not allowed"),
        (b"a: \x1b[31m\n", "1:4: matrix: control character U+001B is not allowed"),
        ("\xe4: \u202a\x9b\n".encode(), "1:5: matrix: control character U+009B is not allowed"),
        (b"x" * (16 * 1024 * 1024 + 1), "1:1: matrix: the file is larger than 16 MiB"),
        (b"schema: envbuild.matrix/1\nenvironments: {}\n",
         "2:1: environments: must be a mapping of at least one row"),
        (b"schema: envbuild.matrix/1\nenvironments:\n  a:\n", "3:3: environments.a: must be a mapping"),
    ],
)  # fmt: skip
def test_not_a_matrix_at_all(raw: bytes, expected: str) -> None:
    assert complaints(raw) == [expected]


@pytest.mark.parametrize("piece", [b"[", b"- ", b"? ", b"{a: ", b"[{? ["])
def test_ten_megabytes_of_nesting(piece: bytes) -> None:
    # libyaml may give up first, since it reads ahead.
    [found] = complaints(piece * (10_000_000 // len(piece)))
    assert "nested deeper than 24 levels" in found or "exceeded maximum nesting depth" in found or "a key must" in found


def test_bad_yaml_points_at_the_place() -> None:
    [found] = complaints("schema: envbuild.matrix/1\nenvironments:\n  a: [1, 2\n  b: 3\n")
    assert found.startswith("4:4: ") and "not valid YAML" in found


def test_aliases_that_multiply_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    [found] = complaints("\n".join(levels))
    assert "more than 500,000 values, with aliases followed" in found
    deep = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100)]
    [found] = complaints("\n".join(deep))
    assert "nested deeper than 24 levels, with aliases followed" in found


def test_a_row_that_inherits_too_much_is_refused() -> None:
    many = ", ".join(f"V{i}: x" for i in range(20_000))
    found = complaints(GOOD.replace("environments:", f"defaults: {{env: {{{many}}}}}\nenvironments:"))
    assert found == ["4:3: environments.one: has more than 10,000 values"]


MUCH = {
    "packages": "packages: [" + "a, " * 5000 + "b]",
    "env": "env: {" + ", ".join(f"V{i}: x" for i in range(5000)) + "}",
    "unknown": ", ".join(f"k{i}: x" for i in range(5000)),
}


@pytest.mark.parametrize("kind", MUCH)
def test_a_small_file_whose_rows_inherit_too_much_is_refused(kind: str) -> None:
    # Some 150 KB, which would come to 25 million values.
    rows = "".join(f"  r{i}: {{extends: one, env: {{A: b}}}}\n" for i in range(5000))
    if kind == "unknown":
        text = GOOD.replace("environments:", f"defaults: {{{MUCH[kind]}}}\nenvironments:") + rows
    else:
        text = change("family: debian", f"family: debian\n    {MUCH[kind]}") + rows
    said = "the rows come to more than 2,000,000 values here, with what they inherit"
    [here] = [line for line in complaints(text) if said in line]
    assert re.match(r"[0-9]+:3: environments\.r[0-9]+: ", here)


def test_chains_are_bounded_and_circles_named() -> None:
    rows = "".join(f"  r{i}: {{extends: r{i + 1}}}\n" for i in range(1000))
    found = complaints(GOOD.replace("  one:", f"{rows}  r1000:"))
    assert len(found) == 1 and "environments.r991.extends: more than 8 rows extend one another here" in found[0]
    circle = "  a: {extends: b}\n  b: {extends: c}\n  c: {extends: b}\n"
    found = complaints(GOOD.replace("environments:\n", f"environments:\n{circle}"))
    assert found == ["5:16: environments.c.extends: runs in a circle: 'b' -> 'c' -> 'b'"]


def test_a_claim_has_the_evidence_of_its_fact_or_of_what_holds_it() -> None:
    said = "claimed: {gcc.version: {value: x, by: y, contradicted: z}, torch: {value: x, by: y, contradicted: z}}"
    row = read(change("family: debian", f"family: debian\n    {said}")).get("one")
    assert list(row.claimed) == ["gcc.version", "torch"]


def test_ten_thousand_rows() -> None:
    small = "".join(f"  r{i}: {{extends: one}}\n" for i in range(10_000))
    matrix = read(GOOD + small)
    assert len(matrix.environments) == 10_001
    assert matrix.place("r9999", ("python",)).line == 9
    row = GOOD.split("environments:\n")[1]
    # Written out, aliases and all, they are more than a matrix may hold; where that is seen is said.
    [found] = complaints(GOOD + "".join(row.replace("  one:", f"  r{i}:", 1) for i in range(10_000)))
    assert re.match(
        r"[0-9]{5,}:[0-9]+: environments\.r[0-9]+.*: more than 500,000 values, with aliases followed", found
    )
    # Each with a parent of its own that is not there: looking for what was meant must not take their product.
    wrong = "".join(f"  r{i}: {{extends: s{i}}}\n" for i in range(10_000))
    with pytest.raises(MatrixError) as caught:
        read(GOOD + wrong)
    assert "more than 500 problems" in caught.value.hint and "there is no row 's499'" in caught.value.message


def test_a_hostile_number_of_errors_is_cut() -> None:
    keys = "".join(f"    k{i}: x\n" for i in range(5000))
    with pytest.raises(MatrixError) as caught:
        read(change("    summary: A row\n", f"    summary: A row\n{keys}"))
    assert len(caught.value.findings) == 500
    assert "more than 500 problems" in caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as caught:
        load(tmp_path / "none.yaml")
    assert "envbuild init" in caught.value.hint
    with pytest.raises(InputError, match="is not a file"):
        load(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="cannot read"):
        load(Path("nul\0byte"))


def test_a_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    matrix = read(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert matrix.place("one", ("python",)).line == 9
