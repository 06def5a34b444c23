"""A few steps under torch's profiler: the operators that take the time, and on a GPU what overlaps what.

Loaded by its path. The intervals come from the profiler's own trace (its ``cat`` says kernel, gpu_memcpy, ...); they
are joined before they are added up, because what runs at the same time is one time.
"""

import json
import os

_OPERATORS = 20


def traced(torch, gpu, steps, path):
    """Run ``steps`` (a function) under the profiler; what it saw."""
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU]
    if gpu:
        activities.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=activities) as seen:
        steps()
    figures = {"operators": _operators(seen), "device": None}
    if gpu:
        seen.export_chrome_trace(path)
        try:
            with open(path) as stream:
                figures["device"] = on_device(json.load(stream).get("traceEvents", []))
        finally:
            os.unlink(path)
    return figures


def _operators(seen):
    rows = []
    for each in seen.key_averages():
        # The second name is the first one's before torch 2.4.
        device = getattr(each, "self_device_time_total", getattr(each, "self_cuda_time_total", 0.0))
        rows.append(
            {
                "name": str(each.key)[:200],
                "count": int(each.count),
                "seconds": each.self_cpu_time_total / 1e6,
                "device_seconds": (device or 0.0) / 1e6,
            }
        )
    rows.sort(key=lambda row: -max(row["seconds"], row["device_seconds"]))
    return rows[:_OPERATORS]


def on_device(events):
    """Seconds of compute, of communication, of copies, and of communication behind which nothing computes."""
    kinds = {"compute": [], "communication": [], "h2d": [], "d2h": []}
    moved = {"h2d": 0, "d2h": 0}
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("kernel", "gpu_memcpy"):
            continue
        name, begin = str(event.get("name", "")), float(event.get("ts", 0.0))
        kind = _kind(event["cat"], name)
        if kind is None:
            continue
        kinds[kind].append((begin, begin + float(event.get("dur", 0.0))))
        if kind in moved:
            moved[kind] += int((event.get("args") or {}).get("bytes", 0) or 0)
    joined = {kind: union(spans) for kind, spans in kinds.items()}
    seconds = {kind: length(spans) / 1e6 for kind, spans in joined.items()}
    alone = length(joined["communication"]) - length(common(joined["communication"], joined["compute"]))
    seconds["exposed_communication"] = alone / 1e6
    return {"seconds": seconds, "bytes": moved}


def _kind(category, name):
    if category == "gpu_memcpy":
        return "h2d" if "HtoD" in name else "d2h" if "DtoH" in name else None
    return "communication" if name.lower().startswith("nccl") else "compute"


def union(spans):
    """Intervals, joined where they touch."""
    found = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def common(ones, others):
    """What lies in both of two lists of joined intervals."""
    found, one, other = [], 0, 0
    while one < len(ones) and other < len(others):
        begin, end = max(ones[one][0], others[other][0]), min(ones[one][1], others[other][1])
        if begin < end:
            found.append((begin, end))
        if ones[one][1] < others[other][1]:
            one += 1
        else:
            other += 1
    return found


def length(spans):
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
