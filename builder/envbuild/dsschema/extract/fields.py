"""What DeepSpeed's pydantic models say of their fields, whichever pydantic it is."""

import enum
import importlib
import inspect
import typing

# One value of each type, by the letter that stands for it in "takes".
SAMPLES = (
    ("b", True), ("i", 1), ("f", 1.5), ("e", 2.0), ("n", "1"), ("t", "true"), ("s", "some text"), ("a", []), ("o", {}),
    ("z", None), ("m", -1), ("0", 0),
)  # fmt: skip
# With this the rest of an otherwise empty configuration is complete.
BASE = {"train_batch_size": 1}
PROBE = "envbuild_probe"
# How deep a section inside a section is looked for.
DEEPEST = 6
NONE = type(None)


def models():
    utils = importlib.import_module("deepspeed.runtime.config_utils")
    return utils.DeepSpeedConfigModel


def plain(value):
    """A default as JSON has it."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, (bool, str, NONE)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in dict.items(value)}
    if hasattr(value, "model_dump") or hasattr(value, "__fields_set__"):
        return dumped(value)
    return repr(value)


def dumped(model):
    fields = fields_of(type(model))
    return {name: plain(getattr(model, name)) for name in fields if hasattr(model, name)}


def fields_of(model):
    return getattr(model, "model_fields", None) or getattr(model, "__fields__", {})


def variants(annotation):
    """The types of a Union, flat."""
    arguments = getattr(annotation, "__args__", None)
    if arguments and (getattr(annotation, "__origin__", None) in unions() or type(annotation).__name__ == "UnionType"):
        return [each for argument in arguments for each in variants(argument)]
    return [annotation]


def unions():

    return (typing.Union,)


KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", tuple: "array", set: "array",
         dict: "object", NONE: "null"}  # fmt: skip


def kinds_of(annotation):
    """JSON types, allowed values, and the model of a declared type."""
    kinds, allowed, model = [], [], None
    for each in variants(annotation):
        origin = getattr(each, "__origin__", each)
        if inspect.isclass(origin) and issubclass(origin, enum.Enum):
            allowed += [plain(member.value) for member in origin]
            kinds += ["string" if all(isinstance(plain(m.value), str) for m in origin) else "integer"]
        elif inspect.isclass(origin) and fields_of(origin):
            kinds.append("object")
            model = origin
        elif str(origin).endswith("Literal"):
            allowed += list(each.__args__)
            kinds += sorted({KINDS[type(value)] for value in each.__args__})
        elif origin in KINDS:
            kinds.append(KINDS[origin])
        elif inspect.isclass(origin) and issubclass(origin, (dict, list, str, int, float)):
            kinds.append(next(name for kind, name in KINDS.items() if issubclass(origin, kind)))
        else:
            kinds.append("any")
    return list(dict.fromkeys(kinds)), allowed, model


def facts_of(model, name, field):
    """What a field of a model says: (annotation, default, alias, bounds, extra), whichever pydantic it is."""
    if hasattr(field, "json_schema_extra"):
        bounds = {}
        for item in field.metadata:
            for bound in ("gt", "ge", "lt", "le"):
                value = getattr(item, bound, None)
                if value is not None:
                    bounds[bound] = value
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        return field.annotation, default, field.alias, bounds, extra, field.is_required()
    info = field.field_info
    bounds = {
        bound: getattr(info, bound) for bound in ("gt", "ge", "lt", "le") if getattr(info, bound, None) is not None
    }
    alias = field.alias if field.alias != name else None
    return (
        field.outer_type_ if not field.allow_none else _optional(field),
        field.get_default(),
        alias,
        bounds,
        info.extra,
        bool(field.required),
    )


def _optional(field):

    return typing.Optional[field.outer_type_]


def section_of(model, depth=0):
    """A pydantic model as a section."""
    extra = model.model_config.get("extra", "ignore") if hasattr(model, "model_config") else _extra_of_v1(model)
    keys = {}
    for name, field in fields_of(model).items():
        annotation, default, alias, bounds, more, required = facts_of(model, name, field)
        kinds, allowed, inner = kinds_of(annotation)
        key = {"names": [alias, name] if alias else [name], "types": kinds, "default": plain(default)}
        if allowed:
            key["enum"] = allowed
        if bounds:
            key["bounds"] = {bound: plain(value) for bound, value in bounds.items()}
        if required:
            key["required"] = True
        if more.get("deprecated"):
            key["deprecated"] = renamed(more)
        if inner is not None and depth < DEEPEST:
            key["section"] = section_of(inner, depth + 1)
        key["takes"] = "".join(letter for letter, sample in SAMPLES if fits(model, name, sample))
        keys[alias or name] = key
    return {"keys": keys, "extra": extra, "model": model.__name__}


def _extra_of_v1(model):
    extra = model.__config__.extra
    return getattr(extra, "value", extra)


def renamed(more):
    """A field that another one replaces; what its values become there."""
    said = {"new": more.get("new_param", ""), "message": more.get("deprecated_msg", "")}
    if said["new"] and more.get("set_new_param", True):
        turn = more.get("new_param_fn", lambda value: value)
        becomes = {word: turned(turn, value) for word, value in (("true", True), ("false", False))}
        said["becomes"] = becomes
    return said


def turned(turn, value):
    try:
        return written(turn(value))
    except Exception:
        return None


def written(result):
    """A value that a rename sets: of a model only what was said, not its defaults."""
    named = getattr(result, "model_fields_set", None) or getattr(result, "__fields_set__", None)
    return {name: plain(getattr(result, name)) for name in sorted(named)} if named else plain(result)


def fits(model, name, sample):
    """Whether a model takes a value for one of its fields."""
    try:
        model(**{name: sample})
    except Exception as error:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            # A check across fields, or an assertion: not about this value's type.
            return True
        # What another field lacks is no matter of this one; a check of the whole model has no place.
        alias = {name}
        field = fields_of(model)[name]
        if getattr(field, "alias", None):
            alias.add(field.alias)
        return not any(set(map(str, each["loc"][:1])) & alias for each in errors())
    return True
