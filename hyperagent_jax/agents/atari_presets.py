"""Agents for Atari: the same algorithms with the defaults of the paper, of its code or of their authors."""

from typing import Any

from hyperagent_jax.agents import presets

# From the tables "Hyper-parameters of HyperAgent" and, where these are silent, the released code.
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
# From the released code, as the paper is silent. There is one update per interaction.
_DDQN: dict[str, Any] = dict(epsilon_end=0.1, epsilon_updates=200_000)
_THREE: dict[str, dict[str, Any]] = {"hyperagent": _HYPERAGENT, "hyperagent_ois": _HYPERAGENT, "ddqn": _DDQN}
_LANGEVIN: dict[str, Any] = dict(noise_scale=1e-6)  # the largest that its authors tried on Atari
# The paper's baselines, on HyperAgent's torso, optimiser, replay and schedule.
_SHARED: dict[str, dict[str, Any]] = {
    **_THREE,
    "bootdqn": {},
    "ensemble_plus": dict(prior_scale=1.0),
    "ensemble_plus_os": dict(prior_scale=1.0),
    "hyperdqn": _HYPERAGENT,
    "enndqn": dict(prior_scale=0.1),
    "noisy_net": {},
    "sane": dict(scale_width=256),
    "langevin_adam": _LANGEVIN,
    "adam_lmc": _LANGEVIN,
    "rainbow": {},
    "der": {},
    "bayes_ucbdqn": {},
}
# From the baselines' own released code. Periods are in updates here and in interactions there.
_LMC: dict[str, Any] = dict(
    torso="nature_conv_unscaled",
    hidden_sizes=(512,),
    n_step=3,
    update_period=10,
    target_period=500,
    min_replay=32,
    random_start=False,
    replay_capacity=1_000_000,
    learning_rate=1e-4,
    adam_eps=1e-8,
    max_grad_norm=presets.NO_CLIPPING,
)
_RAINBOW: dict[str, Any] = dict(
    torso="nature_conv",
    hidden_sizes=(512,),
    n_step=3,
    update_period=4,
    target_period=2_000,
    min_replay=20_000,
    random_start=False,
    replay_capacity=1_000_000,
    learning_rate=6.25e-5,
    adam_eps=1.5625e-4,
    noise_distribution="truncated_gaussian",
    importance_beta_steps=50_000_000,
)
_AUTHORS: dict[str, dict[str, Any]] = {
    "noisy_net": _LMC,
    "langevin_adam": {**_LMC, **_LANGEVIN},
    "adam_lmc": {**_LMC, **_LANGEVIN, "bias_factor": 0.01},
    "sane": dict(
        torso="nature_conv",
        hidden_sizes=(512,),
        scale_width=256,
        double_q=False,
        n_step=1,
        update_period=4,
        target_period=2_500,
        min_replay=50_000,
        random_start=False,
        replay_capacity=1_000_000,
        learning_rate=6.25e-5,
        max_grad_norm=presets.NO_CLIPPING,
    ),
    "rainbow": _RAINBOW,
    "der": {
        **_RAINBOW,
        "torso": "data_efficient_conv",
        "hidden_sizes": (256,),
        "n_step": 20,
        "update_period": 1,
        "min_replay": 1_600,
        "learning_rate": 1e-4,
        "adam_eps": 1.5e-4,
        "noise_distribution": "gaussian",
        "importance_beta_steps": 2_000_000,
    },
}
# "paper" follows the paper's table and formula, "released" its released code. "authors" has the baselines as their
# own authors run them.
_PRESETS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "paper": (_SHARED, dict(learning_rate=1e-3, prior_regularization=0.01)),
    "released": (_THREE, dict(learning_rate=1e-4, head_regularization=0.01, gradient_penalty=0.01)),
    "authors": (_AUTHORS, {}),
}
PRESETS = tuple(_PRESETS)


def configs(preset: str) -> dict[str, presets.Preset]:
    """Returns the agents for Atari by name, with the defaults of "paper", "released" or "authors"."""
    if preset not in _PRESETS:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    agents, common = _PRESETS[preset]
    return {
        name: presets.CONFIGS[name].with_overrides(**{**_COMMON, **common, **_own_steps(name, preset), **own})
        for name, own in agents.items()
    }


def _own_steps(name: str, preset: str) -> dict[str, Any]:
    """Returns the n-step settings that define DER and Rainbow."""
    own = presets.CONFIGS[name].overrides
    return {"n_step": own["n_step"]} if preset == "paper" and "n_step" in own else {}


def differences(preset: str, other: str) -> str:
    """Returns the settings in which `other` differs from `preset`, formatted like flags."""
    ours, theirs = (configs(name)["hyperagent"].fields for name in (preset, other))
    changed = {name: setting.default for name, setting in theirs.items() if setting.default != ours[name].default}
    return ", ".join(f"{name}={value}" for name, value in changed.items())
