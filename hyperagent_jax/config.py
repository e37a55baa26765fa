"""Command-line flags made from the fields of config dataclasses."""

import dataclasses
import re
import types as python_types
from typing import Any, get_args

from absl import flags

from hyperagent_jax import errors


def field_help(config_class: type) -> dict[str, str]:
    """The text of every field in the `Attributes:` sections of a dataclass and its bases."""
    texts: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):
        section = (cls.__doc__ or "").partition("Attributes:\n")[2]
        for match in re.finditer(r"^        (\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
            texts[match[1]] = " ".join(match[2].split())
    return texts


def _define(name: str, annotation: Any, text: str, values: flags.FlagValues) -> None:
    if isinstance(annotation, python_types.GenericAlias):  # tuple[int, ...]
        define = flags.DEFINE_list
    else:
        types = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float}
        define = types.get(annotation, flags.DEFINE_string)
    define(name, None, text, flag_values=values)


def define_flags(config_classes: dict[str, type], values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines one flag per field of any of the configs, unset by default.

    Args:
        config_classes: maps the names of agents to their config dataclasses.
        values: where the flags go.
    """
    owners: dict[str, list[str]] = {}
    for agent, config_class in config_classes.items():
        for field in dataclasses.fields(config_class):
            owners.setdefault(field.name, []).append(agent)
    for name, agents in owners.items():
        config_class = config_classes[agents[0]]
        field = config_class.__dataclass_fields__[name]
        default = field.default
        if isinstance(default, tuple):
            default = ",".join(str(x) for x in default)
        whose = "" if len(agents) == len(config_classes) else f" [{', '.join(agents)}]"
        _define(name, field.type, f"{field_help(config_class)[name]} (default: {default}){whose}", values)


def from_flags(agent: str, config_class: type, all_classes: dict[str, type], values: flags.FlagValues) -> Any:
    """Makes the config of an agent from the flags that were set.

    Args:
        agent: the agent's name.
        config_class: its config dataclass.
        all_classes: what `define_flags` was called with.
        values: parsed flags.
    """
    own = {field.name: field for field in dataclasses.fields(config_class)}
    every = {field.name for cls in all_classes.values() for field in dataclasses.fields(cls)}
    settings = {}
    for name in sorted(every):
        value = values[name].value
        if value is None:
            continue
        if name not in own:
            raise errors.UserError(f"agent {agent} has no setting --{name}; it has: {', '.join(own)}")
        annotation = own[name].type
        if isinstance(annotation, python_types.GenericAlias):
            element = get_args(annotation)[0]
            try:
                value = tuple(element(x) for x in value)
            except ValueError as error:
                raise errors.UserError(f"--{name} must be a comma-separated list of {element.__name__}") from error
        settings[name] = value
    try:
        return config_class(**settings)
    except ValueError as error:
        raise errors.UserError(f"--{error}") from error
