"""Reads the configuration out of DeepSpeed itself, and prints it as JSON: keys, types, defaults, bounds, renames.

    python DIR/extract                          # the DeepSpeed of this interpreter, such as that of an image
    python DIR/extract --source DIR [--stub]    # an unpacked source archive; --stub: without torch

The configuration is built for real, from a dictionary that writes down which keys it is asked for: so the keys are
those that this release reads, not those of its documentation. Sections that are pydantic models are described by their
fields. What values a key takes is tried, one value of each JSON type after another.

With --stub, torch and whatever else is not installed are stand-ins without content, and DeepSpeed's packages are not
initialised. Only the types of the configuration are asked for; a test compares with a real installation.

Standard library, DeepSpeed, and what that imports. Python 3.8 and later, pydantic 1 and 2.
"""

import argparse
import importlib
import inspect
import json
import logging
import os
import sys
import types

from asking import BASE, asked_at_start, asked_key, build
from fields import dumped, models, plain
from stand_ins import Finder


def root():
    module = importlib.import_module("deepspeed.runtime.config")
    # As in a started run: some keys are asked for only then.
    module.dist = types.SimpleNamespace(
        get_rank=lambda *more: 0, get_world_size=lambda *more, **named: 1, is_initialized=lambda: True
    )
    recorder, error = build(dict(BASE))
    if error is not None:
        raise SystemExit("the smallest configuration was not accepted: %r" % error)
    removed = dict(getattr(module, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}))
    asked = dict(recorder.asked)
    for more in (
        {"zero_optimization": True},
        {"fp16": {"enabled": True}},
        {"optimizer": {"type": "Adam", "params": {}}},
    ):
        again, _ = build({**BASE, **more})
        for key, told in again.asked.items():
            asked.setdefault(key, told)
    keys = {key: asked_key((), key, told, default, 0) for key, (told, default) in asked.items() if key not in removed}
    for key in asked_at_start():
        keys.setdefault(key, {"names": [key], "types": [], "default": None, "takes": ""})
    section = {"keys": keys, "extra": "ignore", "model": None}
    if removed:
        section["removed"] = removed
    zero = dict(getattr(module, "_REMOVED_ZERO_CONFIG_KEYS", {}))
    if zero:
        keys["zero_optimization"]["section"]["removed"] = zero
    return section


def by_stage():
    """Defaults of zero_optimization that depend on the stage."""
    zero = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    dumps = [dumped(zero(stage=stage)) for stage in range(4)]
    return {
        name: [dump[name] for dump in dumps]
        for name in dumps[0]
        if name != "stage" and any(dump[name] != dumps[0][name] for dump in dumps)
    }


def version():
    try:
        return importlib.import_module("deepspeed.git_version_info").version.split("+")[0].strip()
    except Exception:
        return ""


def optimizers():
    module = importlib.import_module("deepspeed.runtime.config")
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    found = {}
    for name in schedules.VALID_LR_SCHEDULES:
        signature = inspect.signature(getattr(schedules, name).__init__)
        found[name] = {
            key: None if each.default is inspect.Parameter.empty else plain(each.default)
            for key, each in signature.parameters.items()
            if key not in ("self", "optimizer")
        }
    return list(module.DEEPSPEED_OPTIMIZERS), found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="folder that holds the package deepspeed")
    parser.add_argument("--stub", action="store_true", help="do without torch")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What DeepSpeed prints while it is imported is not the result.
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    if options.source:
        sys.path.insert(0, options.source)
    if options.stub:
        sys.meta_path.insert(0, Finder(options.source))
    found = root()
    names, schedules = optimizers()
    document = {
        "deepspeed": version(), "pydantic": 2 if hasattr(models(), "model_config") else 1,
        "stub": options.stub, "root": found, "by_stage": by_stage(), "optimizers": names, "schedulers": schedules,
    }  # fmt: skip
    json.dump(document, out, indent=1, sort_keys=False)
    out.write("\n")


if __name__ == "__main__":
    main()
