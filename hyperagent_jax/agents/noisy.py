"""Agents that explore by the noise of their dense layers: Noisy-Net, SANE, Rainbow and DER.

They are one algorithm with different settings (see presets.py): a network without a prior whose index is the
noise. Noise is drawn at every step for acting, and in every update for the loss, the target and the double-Q
selector.
"""

import dataclasses

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import noisy


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """Settings of agents with noisy layers.

    Attributes:
        noise: noise of the dense layers: "factorised" with a learned scale per weight, "state" with one scale that
            is a function of the state (SANE), or "none".
        noise_std: sigma_0 of factorised noise; the scale of a layer with p inputs is initially sigma_0 / sqrt(p).
        noise_distribution: distribution of the noise factors, "gaussian" or "truncated_gaussian".
        shares_noise: whether the transitions of a batch share one draw of the noise.
        scale_width: width of the hidden layer that computes the state-dependent scale.
        num_atoms: number of atoms of the return distribution (C51); 1 for plain values.
        v_max: the atoms are evenly spaced in [-v_max, v_max]; returns outside are clipped.
        dueling: "none", or streams for advantages and state values on a "shared" last hidden layer or on
            "separate" ones.
    """

    noise: str = "factorised"
    noise_std: float = 0.5
    noise_distribution: str = "gaussian"
    shares_noise: bool = True
    scale_width: int = 64
    num_atoms: int = 1
    v_max: float = 10.0
    dueling: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0, "noise_std")
        self.require(1, "scale_width")
        self.require(1, "num_atoms", high=base.MOST_ATOMS)
        self.require(1e-12, "v_max")
        checks.one_of("noise", self.noise, noisy.NOISES)
        checks.one_of("noise_distribution", self.noise_distribution, noisy.NOISE_DISTRIBUTIONS)
        checks.one_of("dueling", self.dueling, noisy.DUELING)
        if self.num_atoms == 2:
            raise ValueError("num_atoms must be 1 (plain values) or at least 3, got 2")


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds an agent with noisy layers for an environment."""
    torso, observation, widths = base.make_bare_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    network = noisy.make_noisy_network(
        torso,
        spec.num_actions,
        observation,
        hidden_sizes=widths,
        noise=config.noise,
        noise_std=config.noise_std,
        noise_distribution=config.noise_distribution,
        scale_width=config.scale_width,
        num_atoms=config.num_atoms,
        v_max=config.v_max,
        dueling=config.dueling,
    )
    drawn = "shared" if config.shares_noise else "transition"
    selector = "own" if config.double_q else "target"
    if network.distribution is None:
        loss = losses.make_td_loss(
            network,
            kind="sampled",
            perturbation=indices.no_index(),
            num_indices=1,
            loss_index=drawn,
            target_index=drawn,
            selector_index=selector,
            double_q=config.double_q,
        )
    else:
        loss = losses.make_categorical_loss(
            network, loss_index=drawn, target_index=drawn, selector_index=selector, double_q=config.double_q
        )
    return base.make_agent(config, spec, network, loss, indices.no_index(), action_index="step")
