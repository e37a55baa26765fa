"""The agents, defined as algorithms with settings."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from hyperagent_jax import config as config_lib
from hyperagent_jax import types
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


@dataclasses.dataclass(frozen=True)
class Preset:
    """An algorithm's config class with different defaults; call it with settings to make a config.

    Attributes:
        config_class: frozen dataclass of the algorithm's settings.
        make_agent: maps (config, spec) to an Agent.
        source: origin of the algorithm, in one line.
        overrides: settings whose defaults differ from those of `config_class`.
    """

    config_class: type[base.Config]
    make_agent: Callable[[Any, types.EnvironmentSpec], base.Agent]
    source: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._require_known(self.overrides)

    def __call__(self, **settings: Any) -> Any:
        """Makes a config from the preset's defaults and these settings."""
        self._require_known(settings)
        return self.config_class(**{**self.overrides, **settings})

    @property
    def fields(self) -> dict[str, config_lib.Setting]:
        """The settings by name, with the preset's defaults."""
        return config_lib.settings_of(self)

    def with_overrides(self, **settings: Any) -> "Preset":
        """Returns a copy of the preset with these settings as defaults."""
        return dataclasses.replace(self, overrides={**self.overrides, **settings})

    def _require_known(self, settings: Mapping[str, Any]) -> None:
        known = [field.name for field in dataclasses.fields(self.config_class)]
        if unknown := [name for name in settings if name not in known]:
            raise ValueError(f"unknown setting {unknown[0]!r}; choose one of {', '.join(known)}")


# A norm that no gradient reaches; unlike infinity, it can be written to JSON.
NO_CLIPPING = 1e9

_HYPERAGENT = Preset(
    hyperagent.Config, hyperagent.make_agent, "HyperAgent (Li et al., ICML 2024): a last-layer linear hypermodel"
)
_OIS = dataclasses.replace(
    _HYPERAGENT, source="HyperAgent with optimistic index sampling in acting and in the target"
).with_overrides(num_ois=5)

# On DeepSea, agents with the paper's settings keep retrying actions that have just failed, more often as the
# replay grows: under uniform sampling a transition is drawn 128 / k times in episode k, so what is learned at the
# frontier takes ever longer to reach the initial state, and episodes to learn grow faster than the size. A run
# also gets stuck permanently if an action that it must try looks bad for every index. Hence, at any size:
_PRIORITIZED = dataclasses.replace(
    _OIS, source="HyperAgent with OIS, prioritised replay and four updates per step"
).with_overrides(
    updates_per_step=4,  # values must propagate back through as many states as an episode has steps
    recent_fraction=0.25,
    priority_fraction=0.5,
    unit_prior=True,  # zero mean and the same spread everywhere, as in the paper's analysis
    prior_scale=0.5,
)
_RMAX = dataclasses.replace(
    _PRIORITIZED,
    config_class=hyperagent_rmax.Config,
    make_agent=hyperagent_rmax.make_agent,
    source="R-max (Brafman and Tennenholtz, 2002) with HyperAgent's uncertainty in place of counts",
).with_overrides(
    num_ois=1,  # R-max values are optimistic already
    independent_prior=True,  # training must not reduce uncertainty where nothing was tried
    discount=0.985,  # a nearer untried pair is better by more than the values' error
)
# One configuration for environments with and without noise, for integers, vectors and images.
_OPTIMISTIC = dataclasses.replace(
    _RMAX,
    config_class=hyperagent_optimistic.Config,
    make_agent=hyperagent_optimistic.make_agent,
    source="R-max with HyperAgent's uncertainty explores, Double DQN exploits",
).with_overrides(
    separate_uncertainty=True,  # the mean is Double DQN's, whatever the prior
    wave_frequency=3.0,  # a prior that differs between vectors, whatever their units
    residual=1.0,  # where outcomes are random, uncertainty falls only as fast as the error of their mean
    sigma=0.05,  # uncertainty that tells one visit from two, although one is enough to be known at first
    prior_scale=1.0,  # an action whose outcomes have standard deviation 1 is known after 25 visits
    importance_beta=0.5,  # random outcomes keep having large errors and are oversampled
    target_period=20,  # with 4, values drift beyond the largest return where no reward anchors them
    resample_probability=0.002,  # episodes are followed to their end unless they are very long
)

_BOOTDQN = Preset(
    bootdqn.Config, bootdqn.make_agent, "Bootstrapped DQN (Osband et al., 2016): an ensemble on bootstrap masks"
)
_ENSEMBLE_PLUS = dataclasses.replace(
    _BOOTDQN, source="Ensemble+ (Osband et al., 2018): bootstrapped DQN with a randomised prior per member"
).with_overrides(prior_scale=30.0)  # spreads as HyperAgent's prior does at initialisation

_NOISY_NET = Preset(
    noisy.Config, noisy.make_agent, "Noisy-Net (Fortunato et al., 2018): factorised Gaussian noise in dense layers"
)
_RAINBOW = dataclasses.replace(
    _NOISY_NET, source="Rainbow (Hessel et al., 2018): C51, dueling, noisy layers, 3 steps, prioritised replay"
).with_overrides(
    num_atoms=51,
    dueling="separate",
    noise_std=0.1,
    n_step=3,
    priority_fraction=1.0,  # priorities are square roots of losses: Rainbow's exponent 0.5
    importance_beta=0.4,
)
_LANGEVIN = Preset(
    langevin.Config, langevin.make_agent, "LangevinAdam (Ishfaq et al., 2024): Adam with preconditioned noise"
).with_overrides(optimizer="langevin_adam", noise_scale=0.01)  # chosen from four scales on DeepSea 10, seed 1

CONFIGS: dict[str, Preset] = {
    "hyperagent": _HYPERAGENT,
    "hyperagent_ois": _OIS,
    "hyperagent_prioritized": _PRIORITIZED,
    "hyperagent_rmax": _RMAX,
    "hyperagent_optimistic": _OPTIMISTIC,
    "ddqn": Preset(ddqn.Config, ddqn.make_agent, "Double DQN (van Hasselt et al., 2016), epsilon-greedy"),
    "bootdqn": _BOOTDQN,
    "ensemble_plus": _ENSEMBLE_PLUS,
    "ensemble_plus_os": dataclasses.replace(
        _ENSEMBLE_PLUS, source="Ensemble+ with optimistic sampling, the practical LSVI-PHE (Ishfaq et al., 2021)"
    ).with_overrides(optimistic=True),
    # eq. q-loss-hyperdqn
    "hyperdqn": dataclasses.replace(
        _HYPERAGENT, source="HyperDQN (Li et al., 2022): weights and bias generated, a dependent target"
    ).with_overrides(
        network="last_layer_bias", perturbation_distribution="sphere", loss="sampled", target_index="dependent"
    ),
    # From the paper's comparison of network structures.
    "hypermodel": dataclasses.replace(
        _HYPERAGENT, source="HyperModel (Dwaracherla et al., 2020): all layers generated by a linear hypermodel"
    ).with_overrides(network="all_layers", loss="sampled"),
    # eq. q-loss-enn
    "enndqn": dataclasses.replace(
        _HYPERAGENT, source="ENNDQN (Osband et al., 2023): an epinet, no perturbation, a dependent target"
    ).with_overrides(
        network="epinet",
        index_distribution="gaussian",
        sigma=0.0,
        prior_scale=1.0,
        loss="sampled",
        target_index="dependent",
    ),
    # The paper's baselines, with HyperAgent's torso, optimiser, replay and double Q-learning.
    "noisy_net": _NOISY_NET,
    "sane": dataclasses.replace(
        _NOISY_NET, source="SANE (Aravindan and Lee, 2021): one state-dependent scale of noise, a draw per example"
    ).with_overrides(noise="state", shares_noise=False),
    "langevin_adam": _LANGEVIN,
    "adam_lmc": dataclasses.replace(
        _LANGEVIN, source="Adam LMCDQN (Ishfaq et al., 2024): Langevin Monte Carlo with Adam's direction as a bias"
    ).with_overrides(optimizer="adam_lmc", noise_scale=0.03),
    "rainbow": _RAINBOW,
    "der": dataclasses.replace(
        _RAINBOW, source="DER (van Hasselt et al., 2019): Rainbow with many updates and long sums of rewards"
    ).with_overrides(n_step=20),
    "bayes_ucbdqn": Preset(
        bayes_ucbdqn.Config,
        bayes_ucbdqn.make_agent,
        "Bayes-UCBDQN (Tiapkin et al., 2022), inferred: Exp(1) weights, a quantile over members in the target",
        dict(optimistic=True, mask_distribution="exponential_mask", acts_on="member"),
    ),
    "bbf": Preset(
        bbf.Config,
        bbf.make_agent,
        "BBF (Schwarzer et al., 2023): a residual network, self-prediction, resets, annealed horizon",
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
            max_grad_norm=NO_CLIPPING,
        ),
    ),
}
