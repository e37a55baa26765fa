"""Deep LMC-LSVI (Ishfaq et al., 2024): Double DQN without epsilon-greedy, whose optimiser adds noise.

The parameters are the sample of the posterior, so there is no index. `updates_per_step` is the paper's J_k.
"""

import dataclasses

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import langevin
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import epistemic

OPTIMIZERS = ("langevin_adam", "adam_lmc")


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """Settings of agents that explore by the noise of their optimiser.

    The presets set one of two optimisers: "langevin_adam", Adam with noise that is preconditioned like its step,
    or "adam_lmc", a gradient step with Adam's direction as a bias and plain noise.

    Attributes:
        noise_scale: factor of the optimiser's noise: the square root of the temperature.
        bias_factor: factor of Adam's direction in adam_lmc.
        noise_kind: distribution of the noise: "normal", or "signs" for random signs, which are cheaper.
    """

    noise_scale: float = 1e-4
    bias_factor: float = 1.0
    noise_kind: str = "normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("optimizer", self.optimizer, OPTIMIZERS)
        checks.one_of("noise_kind", self.noise_kind, langevin.NOISES)
        self.require(0, "noise_scale", "bias_factor")


def make_optimizer(config: Config) -> langevin.StochasticTransformation:
    """Builds the optimiser that `config` describes."""
    settings = dict(
        b1=config.adam_b1,
        b2=config.adam_b2,
        eps=config.adam_eps,
        max_grad_norm=config.max_grad_norm,
    )
    if config.optimizer == "langevin_adam":
        return langevin.langevin_adam(
            config.learning_rate, config.noise_scale, noise=config.noise_kind, **settings
        )
    return langevin.adam_lmc(
        config.learning_rate,
        config.noise_scale,
        bias_factor=config.bias_factor,
        noise=config.noise_kind,
        **settings,
    )


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    network = epistemic.make_plain_network(torso, spec.num_actions, observation)
    loss = losses.make_td_loss(network, kind="exact", double_q=config.double_q)
    return base.make_agent(config, spec, network, loss, indices.no_index(), optimizer=make_optimizer(config))
