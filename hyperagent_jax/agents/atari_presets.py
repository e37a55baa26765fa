"""Settings of agents for Atari: the same agents with other defaults, of the paper or of its released code."""

from typing import Any

from hyperagent_jax.agents import presets

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


def configs(preset: str) -> dict[str, presets.Preset]:
    """Returns the agents for Atari by name, with the defaults of "paper" or "released"."""
    if preset not in _PRESETS:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    return {
        name: presets.CONFIGS[name].with_overrides(**_COMMON, **own, **_PRESETS[preset])
        for name, own in _AGENTS.items()
    }


def differences(preset: str, other: str) -> str:
    """Returns the settings in which `other` differs from `preset`, as flags would give them."""
    ours, theirs = (configs(name)["hyperagent"].fields for name in (preset, other))
    changed = {name: setting.default for name, setting in theirs.items() if setting.default != ours[name].default}
    return ", ".join(f"{name}={value}" for name, value in changed.items())
