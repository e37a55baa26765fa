"""Settings of agents for Atari: the same agents with other defaults, by the paper or by its released code."""

import dataclasses
from typing import Any

from hyperagent_jax import agents

# Tables "Hyper-parameters of HyperAgent" and, for what they leave open, the released code.
_COMMON: dict[str, Any] = dict(
    hidden_sizes=(256,),
    batch_size=32,
    n_step=5,
    target_period=5,
    min_replay=2_000,
    replay_capacity=500_000,
)
_HYPERAGENT: dict[str, Any] = dict(
    sigma=0.01,
    prior_scale=0.1,
    posterior_scale=0.1,
    prior_std=0.1,
    mean_init="xavier",
)
# "paper" is what the paper's table and formula say. "released" is what its code does instead.
_PRESETS: dict[str, dict[str, Any]] = {
    "paper": dict(learning_rate=1e-3, prior_regularization=0.01),
    "released": dict(learning_rate=1e-4, head_regularization=0.01, gradient_penalty=0.01),
}
_AGENTS: dict[str, dict[str, Any]] = {"hyperagent": _HYPERAGENT, "hyperagent_ois": _HYPERAGENT, "ddqn": {}}
PRESETS = tuple(_PRESETS)


def configs(preset: str) -> dict[str, type]:
    """The config classes of the agents for Atari, by name, with the defaults of a preset."""
    if preset not in _PRESETS:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")

    def with_defaults(name: str) -> type:
        base = agents.CONFIGS[name]
        defaults = {**_COMMON, **_AGENTS[name], **_PRESETS[preset]}
        fields = [(key, base.__dataclass_fields__[key].type, value) for key, value in defaults.items()]
        made = dataclasses.make_dataclass("Config", fields, bases=(base,), frozen=True)
        made.__doc__ = f"{name}'s settings for Atari, preset {preset}."
        return made

    return {name: with_defaults(name) for name in _AGENTS}


def differences(preset: str, other: str) -> str:
    """What `other` changes of `preset`, as flags would."""
    ours, theirs = (configs(name)["hyperagent"]() for name in (preset, other))
    changed = {field.name: getattr(theirs, field.name) for field in dataclasses.fields(ours)}
    return ", ".join(f"{name}={value}" for name, value in changed.items() if value != getattr(ours, name))
