"""Keys and sections, found by building the configuration for real."""

import ast
import importlib
import os

from fields import BASE, KINDS, PROBE, SAMPLES, models, plain, section_of
from recorder import Recorder


def config_class():
    return importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig


def build(content):
    """Build the configuration; returns the recorder and the failure, if there was one."""
    recorder = content if isinstance(content, Recorder) else Recorder(content)
    try:
        built = config_class()(recorder)
    except Exception as error:
        return recorder, error
    for each in kept_by(built):
        each.kept = each is not recorder
    return recorder, None


def kept_by(built):
    """The recorders that a configuration hands on as they are: whoever gets them may ask for more."""
    seen, todo = [], [value for name, value in vars(built).items() if name != "_param_dict"]
    while todo:
        value = todo.pop()
        if any(value is each for each in seen):
            continue
        seen.append(value)
        if isinstance(value, Recorder):
            yield value
        elif isinstance(value, dict):
            todo += list(value.values())
        elif hasattr(value, "__dict__") and type(value).__module__.startswith("deepspeed"):
            todo += list(vars(value).values())


def wrapped(path, inner):
    """A configuration with one section at a path."""
    content = inner
    for word in reversed(path):
        content = Recorder({word: content})
    for key, value in BASE.items():
        dict.setdefault(content, key, value)
    return content


class Watch:
    """Notes the models that are built while a configuration is."""

    def __init__(self):
        # Some of the models are not of DeepSpeed's own base class.
        comms = importlib.import_module("deepspeed.comm.config").CommsLoggerConfig
        bases = [each for model in (models(), comms) for each in model.__mro__ if each.__name__ == "BaseModel"]
        self.originals = {base: base.__init__ for base in bases}
        self.seen = []

    def __enter__(self):
        for base, original in self.originals.items():
            base.__init__ = self.noting(original)
        return self

    def noting(self, original):
        def noted(*args, **data):
            self.seen.append((type(args[0]), data))
            if PROBE in data:
                raise ValueError("found")
            original(*args, **data)

        return noted

    def __exit__(self, *args):
        for base, original in self.originals.items():
            base.__init__ = original

    def model_with_probe(self):
        return next((model for model, data in self.seen if PROBE in data), None)


def sections_by_asking(path, depth=0):
    """The keys below a path, found by building the configuration; None where that is no section."""
    with Watch() as watch:
        inner = Recorder({PROBE: 1})
        failure = build(wrapped(path, inner))[1]
    model = watch.model_with_probe()
    if model is not None:
        return section_of(model)
    asks = [inner]
    built = {PROBE: failure is None}
    # Some keys are asked for only where others are there, or switch something on.
    for content in ({"enabled": True}, {"type": "Adam"}, {"enabled": False}, dict.fromkeys(words(), 1)):
        again = Recorder(content)
        built[str(content)] = build(wrapped(path, again))[1] is None
        asks.append(again)
    asked = {}
    for each in asks:
        for key, told in each.asked.items():
            if key != PROBE and (key not in asked or (told[0] and not asked[key][0])):
                asked[key] = told
    whole = any(each.whole or each.kept for each in asks)
    # Where it could not be built when switched on, not all was asked for.
    complete = built["{'enabled': True}"] if "enabled" in asked else any(built.values())
    # A list of the keys is for looking some up, as long as they were then asked for.
    listed = inner.listed and not set(asks[-1].asked) - set(inner.asked)
    if not asked and not whole:
        return None
    keys = {key: asked_key(path, key, told, default, depth) for key, (told, default) in asked.items()}
    return {"keys": keys, "extra": "open" if whole or listed or not complete else "ignore", "model": None}


def asked_at_start():
    """Keys that deepspeed.initialize itself asks a configuration for, by its source."""
    runtime = importlib.import_module("deepspeed.runtime.config").__file__
    path = os.path.join(os.path.dirname(os.path.dirname(runtime)), "__init__.py")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = []
    for node in ast.walk(tree):
        # config["key"], config.get("key"), "key" in config
        if isinstance(node, ast.Subscript) and named(node.value):
            found.append(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and named(node.func.value):
            found += node.args[:1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and named(node.comparators[0]):
            found.append(node.left)
    texts = [getattr(each, "value", None) for each in found]
    return sorted({text for text in texts if isinstance(text, str)})


def named(node):
    return isinstance(node, ast.Name) and node.id == "config"


def words():
    """Every text that DeepSpeed's configuration has a constant for: the keys are among them."""
    module = importlib.import_module("deepspeed.runtime.config")
    values = {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    return sorted(value for value in values if value.isidentifier())


def asked_key(path, key, told, default, depth):
    found = {"names": [key], "types": kinds_by_default(default) if told else [], "default": plain(default)}
    inner = sections_by_asking((*path, key), depth + 1) if depth < 3 else None
    if inner is not None and (isinstance(default, dict) or inner["model"] or inner["keys"]):
        found["section"] = inner
        found["types"] = ["object"]
        if isinstance(default, dict):
            found["default"] = None
    found["takes"] = "".join(letter for letter, sample in SAMPLES if build_takes(path, key, sample))
    return found


def build_takes(path, key, sample):
    if not path:
        content = Recorder(BASE)
        dict.__setitem__(content, key, sample)
        return build(content)[1] is None
    return build(wrapped(path, Recorder({key: sample})))[1] is None


def kinds_by_default(default):
    if isinstance(default, (dict, list, tuple)):
        return ["object" if isinstance(default, dict) else "array"]
    return [KINDS[type(default)]] if type(default) in (bool, int, float, str) else []
