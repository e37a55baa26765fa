"""HyperAgent: posterior sampling over Q* with a last-layer linear hypermodel (ICML 2024)."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import epinet
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import hypermodel
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos

# The highest over the lowest frequency of the waves.
_WAVE_SPAN = 6.0


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """HyperAgent's own settings.

    Attributes:
        network: which layers depend on the index: the "last_layer" (HyperAgent), the last layer with its bias
            ("last_layer_bias", HyperDQN), "all_layers" (HyperModel), or those of an "epinet" on a plain network.
        epinet_hidden_sizes: widths of the epinet's hidden layers.
        epinet_prior_hidden_sizes: widths of the hidden layers of the epinet's prior: index_dim fixed networks.
        index_dim: dimension M of the index.
        index_distribution: distribution of the index.
        perturbation_distribution: distribution of the perturbation z of a transition.
        sigma: root mean square of the perturbation sigma xi^T z, for any choice of the two distributions.
        residual: factor of an additional perturbation by the transition's own TD error. Uncertainty then remains
            where outcomes are random, as the standard error of their mean, and vanishes where they are not.
        loss: "exact" computes the expectation over the index in closed form, "sampled" averages over num_indices
            indices, "enumerated" over all values of a coordinate index.
        num_indices: number of indices N per transition in the sampled loss.
        target_index: index of the bootstrap target: a new one per "transition", one "shared" by the
            batch, "dependent" for the index of the loss, or the best of "all" values of a coordinate index.
        action_index: index to act with: one per "episode", a new one per "step", or the best of "all" values
            of a coordinate index.
        resample_probability: probability per step that the acting index is resampled within an episode.
        num_ois: optimistic index sampling: act on and bootstrap from the best of this many indices.
        prior_scale: factor of the fixed prior.
        unit_prior: whether the prior has mean zero and the same spread for all states and actions: coefficients of
            norm prior_scale. Otherwise mean and spread are those of a random network.
        independent_prior: with unit_prior and integer observations, whether the coefficients of every state and
            action are drawn independently instead of by a network.
        posterior_scale: factor of the learnable part.
        prior_std: scale of the fixed prior's last layer (does not apply to an epinet's prior).
        mean_init: initialisation of b and of the prior's b_0: as one vector on a "sphere" of radius prior_std, or
            "xavier".
        separate_uncertainty: whether the coefficients that the index multiplies have their own torso. The mean is
            then learned as in Double DQN, unaffected by the prior and the uncertainty.
        wave_frequency: with separate_uncertainty and vector observations, if positive, these coefficients and
            their prior see random waves of up to this frequency per standard deviation of the observations, so
            that the prior differs between observations. A prior of ReLU layers may be almost the same for all of
            them, and learning at a few observations then removes it everywhere.
    """

    network: str = "last_layer"
    epinet_hidden_sizes: tuple[int, ...] = (50,)
    epinet_prior_hidden_sizes: tuple[int, ...] = (5,)
    index_dim: int = 4
    index_distribution: str = "sphere"
    perturbation_distribution: str = "scaled_sphere"
    sigma: float = 1e-4
    residual: float = 0.0
    loss: str = "exact"
    num_indices: int = 20
    target_index: str = "transition"
    action_index: str = "episode"
    resample_probability: float = 0.01
    num_ois: int = 1
    prior_scale: float = 10.0
    unit_prior: bool = False
    independent_prior: bool = False
    posterior_scale: float = 1.0
    prior_std: float = 1.0
    mean_init: str = "sphere"
    separate_uncertainty: bool = False
    wave_frequency: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(1, "index_dim", "num_indices", "num_ois")
        self.require(0, "sigma", "residual", "prior_scale", "posterior_scale", "prior_std")
        self.require(0, "resample_probability", high=1)
        self.require(0, "wave_frequency")
        if self.network not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {self.network!r}")
        if self.separate_uncertainty and self.network != "last_layer":
            raise ValueError(f"separate_uncertainty is for network=last_layer, got network={self.network}")
        if self.wave_frequency and not self.separate_uncertainty:
            raise ValueError("wave_frequency is for the uncertainty's own torso: use separate_uncertainty=True")
        if self.independent_prior and not self.unit_prior:
            raise ValueError("independent_prior needs unit_prior: use both, or neither")
        self.require_widths("epinet_hidden_sizes")
        self.require_widths("epinet_prior_hidden_sizes")


def _hyper_prior(config: Config, torso: Any = None) -> priors.Prior:
    return priors.hyper_prior(
        config.prior_scale,
        radius=config.prior_std,
        mean_init=config.mean_init,
        unit_norm=config.unit_prior,
        independent=config.independent_prior,
        torso=torso,
    )


def _make_last_layer(
    config: Config, spec: types.EnvironmentSpec, index: indices.IndexDistribution
) -> epistemic.EpistemicNetwork:
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    if config.network == "last_layer_bias":
        head = heads.hyperdqn_linear(spec.num_actions, index.dim)
    else:
        kernel_init = heads.learnable_init(config.mean_init, config.prior_std)
        head = heads.HyperLinear(spec.num_actions, index.dim, kernel_init)
    uncertainty_torso, prior_torso = _uncertainty_torsos(config, spec, torso)
    return epistemic.make_hyper_network(
        torso,
        spec.num_actions,
        index,
        observation,
        prior=_hyper_prior(config, prior_torso),
        head=head,
        posterior_scale=config.posterior_scale,
        num_states=spec.num_states,
        uncertainty_torso=uncertainty_torso,
    )


def _uncertainty_torsos(config: Config, spec: types.EnvironmentSpec, torso: Any) -> tuple[Any, Any]:
    """Returns the torso of the coefficients and that of their prior; None for a second draw of the former."""
    if not config.separate_uncertainty:
        return None, None
    if not config.wave_frequency or spec.num_states is not None or len(spec.observation_shape) != 1:
        return torso, None
    width, frequencies = config.hidden_sizes[-1], (config.wave_frequency / _WAVE_SPAN, config.wave_frequency)
    waves = functools.partial(torsos.WaveMlp, frequencies=frequencies)
    return waves(config.hidden_sizes, 2 * width), waves((), width)


def _make_all_layers(
    config: Config, spec: types.EnvironmentSpec, index: indices.IndexDistribution
) -> epistemic.EpistemicNetwork:
    if len(spec.observation_shape) == 3:
        raise ValueError("network=all_layers has no convolutions, so it cannot take images: use last_layer")
    _, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    return hypermodel.make_hypermodel_network(
        config.hidden_sizes,
        spec.num_actions,
        index,
        observation,
        prior=_hyper_prior(config),
        head_init=heads.learnable_init(config.mean_init, config.prior_std),
        posterior_scale=config.posterior_scale,
        num_states=spec.num_states,
    )


def _make_epinet(
    config: Config, spec: types.EnvironmentSpec, index: indices.IndexDistribution
) -> epistemic.EpistemicNetwork:
    if config.unit_prior:
        raise ValueError("an epinet's prior is an ensemble of networks: use unit_prior=False with network=epinet")
    torso, observation = base.make_torso(config.hidden_sizes, spec, config.torso, config.conv_dtype)
    prior_torso, _ = base.make_torso(config.epinet_prior_hidden_sizes, spec, config.torso, config.conv_dtype)
    return epinet.make_epinet_network(
        torso,
        spec.num_actions,
        index,
        observation,
        hidden_sizes=config.epinet_hidden_sizes,
        prior=priors.ensemble_prior(config.prior_scale, torso=prior_torso),
        posterior_scale=config.posterior_scale,
        num_states=spec.num_states,
    )


# The values of `Config.network`, and the functions that build them.
NETWORKS = {
    "last_layer": _make_last_layer,
    "last_layer_bias": _make_last_layer,
    "all_layers": _make_all_layers,
    "epinet": _make_epinet,
}


def make_network(config: Config, spec: types.EnvironmentSpec) -> epistemic.EpistemicNetwork:
    """Builds the network that `config` describes, for an environment."""
    return NETWORKS[config.network](config, spec, indices.make(config.index_distribution, config.index_dim))


def make_loss(config: Config, network: epistemic.EpistemicNetwork) -> losses.Loss:
    """Builds the loss of a network that `config` describes."""
    return losses.make_td_loss(
        network,
        kind=config.loss,
        sigma=config.sigma,
        residual=config.residual,
        perturbation=indices.make(config.perturbation_distribution, config.index_dim),
        num_indices=config.num_indices,
        target_index=config.target_index,
        num_ois=config.num_ois,
        double_q=config.double_q,
    )


def make_agent(
    config: Config,
    spec: types.EnvironmentSpec,
    adapt: Callable[[epistemic.EpistemicNetwork], epistemic.EpistemicNetwork] = lambda network: network,
) -> base.Agent:
    """Builds HyperAgent, or a system that differs from it only in its settings, for an environment.

    Args:
        config: the agent's settings.
        spec: the environment's spec.
        adapt: modifies the network that `config` describes.
    """
    network = adapt(make_network(config, spec))
    return base.make_agent(
        config,
        spec,
        network,
        make_loss(config, network),
        indices.make(config.perturbation_distribution, config.index_dim),
        action_index=config.action_index,
        num_ois=config.num_ois,
        resample_probability=config.resample_probability,
    )
