"""More captures from captures: what a value means, by the facts. A signature names the functions that it wants.

A function adds nothing where it cannot say anything; none of them guesses.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping

from envbuild.diagnose.places import place_of
from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build

Captures = Mapping[str, str]
Derive = Callable[[Captures, Facts], Captures]


def derived(names: Iterable[str], captures: Captures, facts: Facts) -> dict[str, str]:
    """The captures that functions add."""
    made: dict[str, str] = {}
    for name in names:
        said = FUNCTIONS[name]({**captures, **made}, facts)
        made |= {key: value for key, value in said.items() if value}
    return made


def gcc_of_symbol(captures: Captures, facts: Facts) -> Captures:
    """version (GLIBCXX_3.4.30, CXXABI_1.3.13) -> gcc, the release that first had it."""
    gcc = facts.gcc_of_symbol(captures.get("version", "").replace("-", "_"))
    if gcc is None:
        return {}
    short = ".".join(gcc.split(".")[:2])
    return {"gcc": short, "symbol_since": f"GCC {short}"}


def place_of_library(captures: Captures, facts: Facts) -> Captures:
    """library, asker -> where they come from, in words; op, package, conda_prefix where a path names them."""
    made: dict[str, str] = {}
    for name in ("library", "asker"):
        place = place_of(captures.get(name, ""))
        made |= {f"{name}_place": place.words, **{key: value for key, value in place.parts.items() if key not in made}}
    return made


def cuda_of_number(captures: Captures, facts: Facts) -> Captures:
    """found (11000, as the driver reports it) -> found_cuda (11.0): cuda.h has 1000 * major + 10 * minor."""
    found = captures.get("found", "")
    if not re.fullmatch(r"[1-9]\d{3,4}", found):
        return {}
    major, minor = divmod(int(found), 1000)
    floor = facts.drivers.get(str(major))
    return {"found_cuda": f"{major}.{minor // 10}", "found_driver": floor.floor if floor else ""}


def cuda_of_arch(captures: Captures, facts: Facts) -> Captures:
    """arch (compute_86, sm_90a, 8.6) -> arch_sm, the toolkits that compile for it, and GPUs that have it."""
    found = re.fullmatch(r"(?:compute_|sm_|lto_)?(?:(\d{1,2})\.(\d)|(\d{1,2})(\d))[af]?", captures.get("arch", ""))
    if not found:
        return {}
    sm = f"{found[1] or found[3]}.{found[2] or found[4]}"
    known = facts.architectures.get(sm)
    gpus = ", ".join(gpu.name for gpu in facts.gpus.values() if gpu.sm == sm)
    return {
        "arch_sm": sm,
        "arch_gpus": gpus,
        "cuda_since": (known.since or "") if known else "",
        "cuda_until": (known.until or "") if known else "",
    }


def cuda_of_torch(captures: Captures, facts: Facts) -> Captures:
    """torch_build (cu118), torch_version (2.1.0+cu118) or torch_cuda (11.8) -> all that follows from torch's CUDA."""
    build = captures.get("torch_build", "") or captures.get("torch_version", "").partition("+")[2]
    said = captures.get("torch_cuda", "")
    cuda = said or (cuda_of_build(build) if re.fullmatch(r"cu\d{2,3}", build) else None) or ""
    if not re.fullmatch(r"\d{1,2}\.\d{1,2}", cuda):
        return {}
    toolkit = facts.toolkits.get(cuda)
    floor = facts.driver_floor(cuda)
    return {
        "torch_cuda": cuda,
        "torch_index": "cu" + cuda.replace(".", ""),
        "toolkit_gcc": str(toolkit.max_gcc) if toolkit else "",
        "torch_driver": floor.floor if floor else "",
    }


def gcc_limit(captures: Captures, facts: Facts) -> Captures:
    """nvcc_cuda, cuda or torch_cuda (11.8) -> max_gcc, the newest GCC major that this nvcc takes."""
    said = next((captures[name] for name in ("nvcc_cuda", "cuda", "torch_cuda") if captures.get(name)), "")
    toolkit = facts.toolkits.get(".".join(said.split(".")[:2]))
    return {"max_gcc": str(toolkit.max_gcc)} if toolkit else {}


def driver_floor(captures: Captures, facts: Facts) -> Captures:
    """cuda or torch_cuda (12.1) -> driver_needed."""
    said = captures.get("cuda") or captures.get("torch_cuda") or ""
    if not re.fullmatch(r"\d{1,2}(?:\.\d{1,2})*", said):
        return {}
    floor = facts.driver_floor(said)
    return {"driver_needed": floor.floor if floor else ""}


# Which library a mangled name of a namespace belongs to.
_NAMESPACES = (
    (re.compile(r"_ZN?K?[RS]?2?N?K?(?:2at|3c10|5torch|5caffe2|6caffe2)"), "torch"),
    (re.compile(r"_ZN?K?N?K?(?:2at|3c10|5torch)"), "torch"),
    (re.compile(r"nccl[A-Z]"), "NCCL"),
    (re.compile(r"cudnn[A-Z]"), "cuDNN"),
    (re.compile(r"cublas[A-Z]"), "cuBLAS"),
    (re.compile(r"_?_?nvJitLink"), "nvJitLink"),
    (re.compile(r"cu(?:da)?[A-Z]"), "CUDA"),
    (re.compile(r"_ZN?K?S[ts]|__cxa_|__gxx_"), "libstdc++"),
    (re.compile(r"_?Py[A-Z_]"), "Python"),
)


def abi_of_symbol(captures: Captures, facts: Facts) -> Captures:
    """symbol (mangled) -> symbol_abi, of the strings in it, and symbol_library, whose name space it is of.

    Itanium C++ ABI: ``Ss`` abbreviates std::string as it was; the new one is ``std::__cxx11::basic_string`` (tag cxx11).
    """
    symbol = captures.get("symbol", "")
    if not symbol:
        return {}
    abi = ""
    if "__cxx11" in symbol or "B5cxx11" in symbol:
        abi = "new"
    elif re.match(r"_Z", symbol) and re.search(r"(?:Ss|RKSs|S0_Ss)(?:$|[A-Z_0-9b-z])|Ss$", symbol):
        abi = "old"
    library = next((name for regex, name in _NAMESPACES if regex.match(symbol)), "")
    return {"symbol_abi": abi, "symbol_library": library}


def batch(captures: Captures, facts: Facts) -> Captures:
    """train_batch, micro_batch, accumulation, world -> their product, and the factor that is missing."""
    try:
        whole = int(captures["train_batch"])
        parts = [int(captures[name]) for name in ("micro_batch", "accumulation", "world")]
    except (KeyError, ValueError):
        return {}
    product = parts[0] * parts[1] * parts[2]
    made = {"batch_product": str(product)}
    if product and whole != product and whole % product == 0:
        made["missing_factor"] = str(whole // product)
        made["accumulation_needed"] = str(whole // product * parts[1])
    return made


def sizes(captures: Captures, facts: Facts) -> Captures:
    """Every capture that ends in _bytes -> the same without it, for people: 9637888 is 9.2 MiB."""
    made: dict[str, str] = {}
    for name, value in captures.items():
        if name.endswith("_bytes") and value.isdigit() and len(value) < 20:
            made[name.removesuffix("_bytes")] = in_words(int(value))
    return made


def in_words(size: int) -> str:
    """A number of bytes for people, in units of 1024."""
    number = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{number:.1f} {unit}"


def signal_of_exit(captures: Captures, facts: Facts) -> Captures:
    """exit_code (-9 of Python's, 137 of a shell's) or signal (9, SIGKILL) -> signal_number, signal_name."""
    said = captures.get("signal", "")
    code = captures.get("exit_code", "").replace(" ", "")
    if re.fullmatch(r"\d{1,2}", said):
        number = int(said)
    elif said:
        name = said if said.startswith("SIG") else f"SIG{said}"
        return {"signal_number": str(int(signal.Signals[name])), "signal_name": name} if name in _SIGNALS else {}
    elif re.fullmatch(r"-\d{1,2}", code):
        number = -int(code)
    elif re.fullmatch(r"1[2-9]\d", code):
        number = int(code) - 128
    else:
        return {}
    name = next((each.name for each in signal.Signals if each == number), "")
    return {"signal_number": str(number), "signal_name": name} if name else {}


_SIGNALS = frozenset(each.name for each in signal.Signals)

FUNCTIONS: dict[str, Derive] = {
    each.__name__: each
    for each in (
        gcc_of_symbol, place_of_library, cuda_of_number, cuda_of_arch, cuda_of_torch, gcc_limit, driver_floor,
        abi_of_symbol, batch, sizes, signal_of_exit,
    )
}  # fmt: skip

__all__ = ["FUNCTIONS", "derived", "in_words"]
