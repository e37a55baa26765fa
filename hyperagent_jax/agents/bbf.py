"""BBF (Schwarzer et al., 2023): C51 on a large residual network, self-prediction, resets, annealed horizons.

The target network is an exponential moving average of the online network, and it also acts. The replay returns the
observations that follow a transition, so it must be on device: see `replay.subsequence`.
"""

import dataclasses
import functools
from typing import Any

import jax
import optax

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.networks import convolutions
from hyperagent_jax.networks import self_predictive
from hyperagent_jax.networks import torsos
from hyperagent_jax.replay import subsequence

# A reset keeps half of the old values of these; projection, predictor and head are reinitialised.
_KEPT = {"torso": 0.5, "transition": 0.5}
# By which pictures are padded and shifted.
_MOST_PIXELS = 1_000


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """BBF's own settings; hidden_sizes ends with the width of the projection.

    n_step and discount are the initial values. The optimiser is AdamW; target_tau replaces target_period.

    Attributes:
        channels: channels of the residual stages on images.
        num_atoms: number of atoms of the return distribution.
        v_max: the atoms are evenly spaced in [-v_max, v_max].
        target_tau: step size of the target network's moving average of the online network, per update.
        weight_decay: weight decay of AdamW, for all weights except biases.
        num_predictions: number of steps that the latent is predicted ahead.
        prediction_weight: factor of the self-prediction loss.
        augmentation_pad: images are shifted by up to this many pixels; 0 for no shifts.
        augmentation_intensity: standard deviation of a random factor of all pixels.
        n_step_end: value to which n_step falls in anneal_updates.
        discount_end: value to which discount rises in anneal_updates.
        anneal_updates: updates after the start, and after every reset, over which n_step and discount change.
        reset_period: updates between resets; 0 for no resets.
        epsilon_updates: updates over which the probability of a random action falls from 1 to 0.
    """

    channels: tuple[int, ...] = (64, 128, 128)
    num_atoms: int = 51
    v_max: float = 10.0
    target_tau: float = 0.005
    weight_decay: float = 0.1
    num_predictions: int = 5
    prediction_weight: float = 5.0
    augmentation_pad: int = 4
    augmentation_intensity: float = 0.05
    n_step_end: int = 3
    discount_end: float = 0.997
    anneal_updates: int = 10_000
    reset_period: int = 40_000
    epsilon_updates: int = 4_002

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_widths("channels")
        self.require(3, "num_atoms", high=base.MOST_ATOMS)
        self.require(1e-12, "v_max")
        self.require(0, "weight_decay", "prediction_weight", "augmentation_intensity")
        self.require(0, "augmentation_pad", high=_MOST_PIXELS)
        self.require(1, "num_predictions", "n_step_end", high=base.LONGEST_SUM)
        self.require(1, "anneal_updates", "epsilon_updates", high=base.MOST_STEPS)
        self.require(0, "reset_period", high=base.MOST_STEPS)
        checks.real_number("target_tau", self.target_tau, 0, 1, is_open=True)
        self.require(0, "discount", "discount_end", high=1 - 1e-6)
        if self.optimizer != "auto":
            raise ValueError(f"bbf uses AdamW: set optimizer=auto, got {self.optimizer!r}")
        if self.n_step < 2:
            raise ValueError(f"n_step must be at least 2 for bbf, which predicts later steps, got {self.n_step}")


def _make_torso(config: Config, spec: types.EnvironmentSpec) -> tuple[Any, Any, bool]:
    """Returns the encoder, an example observation, and whether that is an image."""
    widths, _ = self_predictive.hidden_widths(config.hidden_sizes)
    shape = spec.observation_shape
    if len(shape) == 3 and min(shape[:2]) >= torsos.SmallConv.SMALLEST_SIDE:
        example = base.make_torso((config.hidden_sizes[-1],), spec)[1]
        return convolutions.ImpalaConv(config.channels, is_flat=False), example, True
    torso, example = base.make_torso(widths, spec, config.torso)
    return self_predictive.NormalizedTorso(torso), example, False


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds BBF for an environment."""
    torso, observation, is_picture = _make_torso(config, spec)
    made = self_predictive.make_self_predictive_network(
        torso,
        spec.num_actions,
        observation,
        width=config.hidden_sizes[-1],
        num_atoms=config.num_atoms,
        v_max=config.v_max,
    )
    loss = losses.make_categorical_loss(made.network, double_q=config.double_q)
    loss = losses.with_self_prediction(loss, made.predict, made.project, config.prediction_weight)
    if is_picture and (config.augmentation_pad or config.augmentation_intensity):
        loss = losses.with_augmentation(
            loss,
            pad=config.augmentation_pad,
            intensity=config.augmentation_intensity,
            num_future=config.num_predictions,
        )
    decayed = functools.partial(jax.tree.map, lambda leaf: leaf.ndim != 1)
    adamw = optax.adamw(
        config.learning_rate,
        config.adam_b1,
        config.adam_b2,
        config.adam_eps,
        weight_decay=config.weight_decay,
        mask=decayed,
    )
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adamw)
    reset = None
    if config.reset_period:
        reset = learner_lib.ResetRule(config.reset_period, lambda path: _KEPT.get(path[0], 0.0))
    return base.make_agent(
        config,
        spec,
        made.network,
        loss,
        indices.no_index(),
        epsilon=optax.linear_schedule(1.0, 0.0, config.epsilon_updates),
        optimizer=optimizer,
        polyak=config.target_tau,
        acts_with_target=True,
        reset=reset,
        subsequences=subsequence.Rule(
            config.n_step,
            config.n_step_end,
            config.discount,
            config.discount_end,
            config.anneal_updates,
            config.reset_period,
            config.num_predictions,
        ),
    )
