"""Presets: the agents' default settings, which results on file were made with."""

import dataclasses
import json
import pickle
import re

import pytest

from hyperagent_jax import actor
from hyperagent_jax import agents
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets
from hyperagent_jax.agents import base
from hyperagent_jax.agents import bayes_ucbdqn
from hyperagent_jax.agents import bbf
from hyperagent_jax.agents import bootdqn
from hyperagent_jax.agents import ddqn
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents import hyperagent_optimistic
from hyperagent_jax.agents import hyperagent_rmax
from hyperagent_jax.agents import langevin
from hyperagent_jax.agents import noisy
from hyperagent_jax.experiment import fingerprint

BASE = dict(
    hidden_sizes=(64, 64),
    learning_rate=1e-3,
    adam_b1=0.9,
    adam_b2=0.999,
    adam_eps=1.5e-4,
    max_grad_norm=10.0,
    optimizer="auto",
    discount=0.99,
    batch_size=128,
    updates_per_step=1,
    update_period=1,
    target_period=4,
    min_replay=128,
    random_start=True,
    replay_capacity=1_000_000,
    recent_fraction=0.0,
    priority_fraction=0.0,
    importance_beta=0.0,
    importance_beta_steps=0,
    double_q=True,
    normalize_returns=False,
    smallest_return_unit=0.0,
    n_step=1,
    torso="auto",
    conv_dtype="float32",
    prior_regularization=0.0,
    head_regularization=0.0,
    gradient_penalty=0.0,
)
HYPERAGENT = dict(
    **BASE,
    network="last_layer",
    epinet_hidden_sizes=(50,),
    epinet_prior_hidden_sizes=(5,),
    index_dim=4,
    index_distribution="sphere",
    perturbation_distribution="scaled_sphere",
    sigma=1e-4,
    residual=0.0,
    loss="exact",
    num_indices=20,
    target_index="transition",
    action_index="episode",
    resample_probability=0.01,
    num_ois=1,
    prior_scale=10.0,
    unit_prior=False,
    independent_prior=False,
    posterior_scale=1.0,
    prior_std=1.0,
    mean_init="sphere",
    separate_uncertainty=False,
    wave_frequency=0.0,
)
ENSEMBLE = dict(
    **BASE,
    index_dim=4,
    prior_scale=0.0,
    resample_probability=0.01,
    optimistic=False,
    mask_distribution="bernoulli_mask",
)
NOISY = dict(
    **BASE,
    noise="factorised",
    noise_std=0.5,
    noise_distribution="gaussian",
    shares_noise=True,
    scale_width=64,
    num_atoms=1,
    v_max=10.0,
    dueling="none",
)
RAINBOW = dict(
    num_atoms=51, dueling="separate", noise_std=0.1, n_step=3, priority_fraction=1.0, importance_beta=0.4
)
BBF = dict(
    **BASE,
    channels=(64, 128, 128),
    num_atoms=51,
    v_max=10.0,
    target_tau=0.005,
    weight_decay=0.1,
    num_predictions=5,
    prediction_weight=5.0,
    augmentation_pad=4,
    augmentation_intensity=0.05,
    n_step_end=3,
    discount_end=0.997,
    anneal_updates=10_000,
    reset_period=40_000,
    epsilon_updates=4_002,
)
LANGEVIN = dict(**BASE, noise_scale=1e-4, bias_factor=1.0, noise_kind="normal")
PRIORITIZED = dict(
    updates_per_step=4, recent_fraction=0.25, priority_fraction=0.5, unit_prior=True, prior_scale=0.5
)
RMAX = dict(unknown_value=1.0, known_below=0.2, unknown_above=0.4)
DEPENDENT = dict(loss="sampled", target_index="dependent")

# name -> (class, its settings in their order, what the preset overrides)
EXPECTED = {
    "hyperagent": (hyperagent.Config, HYPERAGENT, {}),
    "hyperagent_ois": (hyperagent.Config, HYPERAGENT, dict(num_ois=5)),
    "hyperagent_prioritized": (hyperagent.Config, HYPERAGENT, dict(num_ois=5, **PRIORITIZED)),
    "hyperagent_rmax": (
        hyperagent_rmax.Config,
        {**HYPERAGENT, **RMAX},
        dict(**PRIORITIZED, num_ois=1, independent_prior=True, discount=0.985),
    ),
    "hyperagent_optimistic": (
        hyperagent_optimistic.Config,
        {**HYPERAGENT, **RMAX, "exploit_share": 0.25, "exploit_above": 0.05, "least_optimism": 0.05},
        {
            **PRIORITIZED,
            **dict(num_ois=1, independent_prior=True, discount=0.985),
            **dict(sigma=0.05, residual=1.0, prior_scale=1.0, importance_beta=0.5, target_period=20),
            **dict(separate_uncertainty=True, wave_frequency=3.0, resample_probability=0.002),
        },
    ),
    "ddqn": (ddqn.Config, dict(**BASE, epsilon_start=1.0, epsilon_end=0.05, epsilon_updates=10_000), {}),
    "bootdqn": (bootdqn.Config, ENSEMBLE, {}),
    "ensemble_plus": (bootdqn.Config, ENSEMBLE, dict(prior_scale=30.0)),
    "ensemble_plus_os": (bootdqn.Config, ENSEMBLE, dict(prior_scale=30.0, optimistic=True)),
    "hyperdqn": (
        hyperagent.Config,
        HYPERAGENT,
        dict(network="last_layer_bias", perturbation_distribution="sphere", **DEPENDENT),
    ),
    "hypermodel": (hyperagent.Config, HYPERAGENT, dict(network="all_layers", loss="sampled")),
    "enndqn": (
        hyperagent.Config,
        HYPERAGENT,
        dict(network="epinet", index_distribution="gaussian", sigma=0.0, prior_scale=1.0, **DEPENDENT),
    ),
    "noisy_net": (noisy.Config, NOISY, {}),
    "sane": (noisy.Config, NOISY, dict(noise="state", shares_noise=False)),
    "langevin_adam": (langevin.Config, LANGEVIN, dict(optimizer="langevin_adam", noise_scale=0.01)),
    "adam_lmc": (langevin.Config, LANGEVIN, dict(optimizer="adam_lmc", noise_scale=0.03)),
    "rainbow": (noisy.Config, NOISY, RAINBOW),
    "der": (noisy.Config, NOISY, dict(**RAINBOW) | dict(n_step=20)),
    "bayes_ucbdqn": (
        bayes_ucbdqn.Config,
        dict(**ENSEMBLE, quantile=0.8, acts_on="quantile"),
        dict(optimistic=True, mask_distribution="exponential_mask", acts_on="member"),
    ),
    "bbf": (
        bbf.Config,
        BBF,
        dict(
            n_step=10,
            discount=0.97,
            updates_per_step=2,
            learning_rate=1e-4,
            batch_size=32,
            replay_capacity=200_000,
            min_replay=2_000,
            priority_fraction=1.0,
            importance_beta=0.5,
            max_grad_norm=1e9,
        ),
    ),
}


def test_every_agent_has_its_defaults():
    assert list(agents.CONFIGS) == list(EXPECTED)
    for name, (config_class, settings, overrides) in EXPECTED.items():
        preset = agents.CONFIGS[name]
        expected = {**settings, **overrides}
        made = dataclasses.asdict(preset())
        assert type(preset()) is preset.config_class is config_class
        assert made == expected and list(made) == list(settings), name
        assert {key: setting.default for key, setting in preset.fields.items()} == expected
        assert preset.overrides == overrides and "\n" not in preset.source and len(preset.source) > 20


def test_presets_are_called_with_settings():
    preset = agents.CONFIGS["hyperagent_prioritized"]
    config = preset(replay_capacity=10, prior_scale=2.0)
    assert (config.replay_capacity, config.prior_scale, config.num_ois) == (10, 2.0, 5)
    other = preset.with_overrides(num_ois=3, batch_size=7)
    assert (other().num_ois, other().batch_size, other().unit_prior) == (3, 7, True)
    assert other.fields["num_ois"].default == 3 and other.fields["num_ois"].type is int
    assert preset().num_ois == 5  # the preset itself is as it was
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("name", agents.CONFIGS)
def test_settings_introduced_start_with_the_default_of_their_class(name):
    """So that results on file from before a setting existed are completed with what was in effect then."""
    defaults = fingerprint.field_defaults(agents.CONFIGS[name]())
    assert defaults == json.loads(json.dumps(EXPECTED[name][1]))


def test_atari_presets_are_ordinary_configs():
    for preset in atari_presets.PRESETS:
        for name, made in atari_presets.configs(preset).items():
            assert type(made()) is agents.CONFIGS[name].config_class
            assert pickle.loads(pickle.dumps(made())) == made()
    assert atari_presets.configs("paper")["hyperagent_ois"]().num_ois == 5


def test_make_is_one_call():
    spec = types.EnvironmentSpec(2, (), 9)
    agent = agents.make("hyperagent_ois", spec, replay_capacity=10, hidden_sizes=(8,))
    assert (agent.name, agent.spec, agent.config.replay_capacity) == ("hyperagent_ois", spec, 10)
    assert agent.config == agents.CONFIGS["hyperagent_ois"](replay_capacity=10, hidden_sizes=(8,))
    assert agent.network.observation.shape == ()


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: agents.make("hypoagent", types.EnvironmentSpec(2, (), 9)),
            "unknown agent 'hypoagent'; choose one",
        ),
        (
            lambda: agents.make("ddqn", types.EnvironmentSpec(2, (), 9), sigma=1.0),
            "unknown setting 'sigma'; choose",
        ),
        (lambda: agents.CONFIGS["ddqn"].with_overrides(width=3), "unknown setting 'width'; choose one of hidden"),
        (
            lambda: agents.make("ddqn", types.EnvironmentSpec(3, (5,), 7)),
            "whose observation_shape is (), got observation_shape (5,)",
        ),
        (lambda: agents.make("ddqn", types.EnvironmentSpec(0, (5,))), "num_actions must be at least 1, got 0"),
        (
            lambda: agents.make("ddqn", types.EnvironmentSpec(2.5, (5,))),
            "num_actions must be a whole number, got 2.5",
        ),
        (lambda: types.EnvironmentSpec(3, 5), "observation_shape must be a tuple of lengths, got 5"),
        (
            lambda: types.EnvironmentSpec(3, (5,), dtype="real"),
            "dtype must be the name of a dtype such as float32, got 'real'",
        ),
        (lambda: actor.make_actor(None, 3), "index must be a distribution such as indices.sphere(4), got None"),
        (lambda: base.Config(double_q="no"), "double_q must be True or False, got 'no'"),
        (lambda: base.Config(batch_size=True), "batch_size must be a whole number, got True"),
        (lambda: base.Config(learning_rate="fast"), "learning_rate must be a number, got 'fast'"),
        (lambda: base.Config(optimizer=3), "optimizer must be a string, got 3"),
        (lambda: base.Config(learning_rate=float("inf")), "learning_rate must be a finite number, got inf"),
        (lambda: hyperagent.Config(prior_scale=float("nan")), "prior_scale must be at least 0, got nan"),
        (lambda: hyperagent.Config(sigma=float("inf")), "sigma must be a finite number, got inf"),
        (lambda: hyperagent.Config(network="lstm"), "network must be one of last_layer, last_layer_bias"),
        (lambda: agents.CONFIGS["hyperagent_rmax"](unknown_value="foo"), "unknown_value must be a number"),
        (lambda: agents.CONFIGS["hyperagent_rmax"](unknown_value=float("nan")), "unknown_value must be a finite"),
    ],
)
def test_misuse_is_one_clear_line(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_clipping_may_be_switched_off():
    assert base.Config(max_grad_norm=float("inf")).max_grad_norm == float("inf")
