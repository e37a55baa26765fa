"""Reads the settings of config dataclasses from command-line flags and from JSON."""

from collections.abc import Callable, Mapping
import copy
import dataclasses
import functools
import json
import re
import sys
import types as python_types
from typing import Any, NamedTuple, get_args

from absl import flags

from hyperagent_jax import errors


@functools.cache
def field_help(config_class: type) -> dict[str, str]:
    """Returns the description of every field in the `Attributes:` sections of a dataclass and its bases."""
    texts: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):
        section = (cls.__doc__ or "").partition("Attributes:\n")[2]
        for match in re.finditer(r"^        (\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
            texts[match[1]] = " ".join(match[2].split())
    return texts


class Setting(NamedTuple):
    """One setting of a config."""

    type: Any  # its annotation
    default: Any  # for a preset, the preset's default
    help: str  # its description in the docstring


def settings_of(config_class: Any) -> dict[str, Setting]:
    """Returns the settings by name of a config dataclass, or of a preset, which overrides some defaults."""
    overrides = getattr(config_class, "overrides", {})
    config_class = getattr(config_class, "config_class", config_class)
    texts = field_help(config_class)
    return {
        field.name: Setting(field.type, overrides.get(field.name, field.default), texts.get(field.name, ""))
        for field in dataclasses.fields(config_class)
    }


def cap_replay(config: Any, num_interactions: int) -> Any:
    """Returns the config with a replay that is not larger than a run of `num_interactions` can fill."""
    if config.replay_capacity <= num_interactions:
        return config
    capped = copy.copy(config)  # skips the checks, which have passed before: grids make many of these
    object.__setattr__(capped, "replay_capacity", num_interactions)
    return capped


def is_list(annotation: Any) -> bool:
    """Returns whether the values of a field are tuples of any length, such as tuple[int, ...]."""
    return isinstance(annotation, python_types.GenericAlias)


_DEFINE: dict[Any, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
}


def define_flags(config_classes: Mapping[str, Any], values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines one flag per field of the config dataclasses or presets, given by agent; unset by default."""
    settings = {agent: settings_of(config_class) for agent, config_class in config_classes.items()}
    owners: dict[str, list[str]] = {}
    for agent, own in settings.items():
        for name in own:
            owners.setdefault(name, []).append(agent)
    for name, agents in owners.items():
        setting = settings[agents[0]][name]
        whose = "" if len(agents) == len(config_classes) else f" [{', '.join(agents)}]"
        defaults = _defaults_text({agent: settings[agent][name].default for agent in agents})
        kind, *_ = get_args(setting.type) or (setting.type,)  # int | None
        define = flags.DEFINE_list if is_list(setting.type) else _DEFINE.get(kind, flags.DEFINE_string)
        define(name, None, f"{setting.help} (default: {defaults}){whose}", flag_values=values)


def _defaults_text(defaults: dict[str, Any]) -> str:
    """Returns the first agent's default, followed by any that differ."""
    agents: dict[str, list[str]] = {}
    for agent, value in defaults.items():
        agents.setdefault(str(value) if value is None else as_text(value), []).append(agent)
    common, *others = agents
    return "; ".join([common, *(f"{other} for {', '.join(agents[other])}" for other in others)])


def from_flags(
    agent: str, config_classes: Mapping[str, Any], values: flags.FlagValues, kind: str = "agent"
) -> Any:
    """Makes the config of an agent from the flags of `define_flags` that are set.

    `kind` says what `agent` is the name of, for messages.
    """
    own = settings_of(config_classes[agent])
    every = {name for cls in config_classes.values() for name in settings_of(cls)}
    settings = {}
    for name in sorted(every):
        value = values[name].value
        if value is None:
            continue
        if name not in own:
            raise errors.UserError(f"{kind} {agent} has no setting --{name}; it has: {', '.join(own)}")
        annotation = own[name].type
        if is_list(annotation):
            element = get_args(annotation)[0]
            try:
                value = tuple(element(x) for x in value)
            except ValueError as error:
                raise errors.UserError(f"--{name} must be a comma-separated list of {element.__name__}") from error
        settings[name] = value
    with errors.settings_are_the_users("--"):
        return config_classes[agent](**settings)


def as_json(config: Any) -> dict[str, Any]:
    """Returns the settings of a config as they come back from JSON: tuples become lists."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def as_text(value: Any) -> str:
    """Formats a value as in flags and in columns of results.csv."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


_JSON_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def from_json(name: str, annotation: Any, value: Any) -> Any:
    """Converts a value read from JSON to the type of a field; raises UserError if it is of a different type.

    Whole numbers are accepted as floats, lists as tuples and null as None; nothing else is converted.
    """
    if is_list(annotation):
        element = get_args(annotation)[0]
        if isinstance(value, list):
            return tuple(from_json(name, element, x) for x in value)
        raise errors.UserError(f"{name} must be a list, each {_JSON_NAMES[element]}, got {json.dumps(value)}")
    kinds = get_args(annotation) or (annotation,)  # int | None
    if value is None and python_types.NoneType in kinds:
        return None
    if kinds[0] is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is kinds[0] and kinds[0] is not float:
        return value
    expected = " or ".join("null" if kind is python_types.NoneType else _JSON_NAMES[kind] for kind in kinds)
    raise errors.UserError(f"{name} must be {expected}, got {json.dumps(value)}")
