"""The common structure and settings of all agents."""

from collections.abc import Callable
import dataclasses
import functools
import math
import numbers
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import indices
from hyperagent_jax import langevin
from hyperagent_jax import lazy_adam
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import convolutions
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos
from hyperagent_jax.replay import ring
from hyperagent_jax.replay import sampling
from hyperagent_jax.replay import subsequence


class Agent(NamedTuple):
    """An agent: pure functions and the settings they were built from.

    Attributes:
        config: the agent's Config.
        network: the epistemic network.
        learner: trains the network.
        actor: acts with the network.
        evaluation_actor: acts in evaluation episodes.
        evaluation_index: distribution of its index.
        perturbation: distribution of the perturbation z.
        name: name in `agents.CONFIGS`, if the agent was built by name.
        spec: spec of the agent's environment.
        subsequences: how to form transitions for agents that also need the following steps; None for n-step
            transitions at a fixed discount.
    """

    config: Any
    network: epistemic.EpistemicNetwork
    learner: learner_lib.Learner
    actor: actor_lib.Actor
    evaluation_actor: actor_lib.Actor
    evaluation_index: indices.IndexDistribution
    perturbation: indices.IndexDistribution
    name: str = ""
    spec: types.EnvironmentSpec | None = None
    subsequences: subsequence.Rule | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings shared by all agents; defaults from the paper and its released code for DeepSea.

    Attributes:
        hidden_sizes: widths of the torso's layers; the last one is the number of features H.
        learning_rate: Adam's learning rate.
        adam_b1: decay rate of Adam's first moment.
        adam_b2: decay rate of Adam's second moment.
        adam_eps: Adam's epsilon.
        max_grad_norm: gradients are clipped to this global norm.
        optimizer: "adam", or "lazy_adam", which updates only the rows of the first layer that a batch looks up:
            equal to Adam up to rounding, and faster with many integer states. "auto" chooses it for 1,024 states
            or more. "langevin_adam" and "adam_lmc" are for the agents with these names.
        discount: discount factor gamma.
        batch_size: transitions per update.
        updates_per_step: number of updates every `update_period` interactions.
        update_period: interactions from one learning phase to the next.
        target_period: updates between copies of the online network to the target network.
        min_replay: interactions before learning starts.
        random_start: whether actions are uniformly random before learning starts, or the agent's.
        replay_capacity: number of transitions that the replay holds.
        recent_fraction: fraction of every batch that is biased towards recent transitions: their ages are
            log-uniform, with as many from 10 to 100 steps ago as from 100 to 1,000.
        priority_fraction: fraction of every batch that is sampled in proportion to the transitions' last errors.
            The rest of the batch is uniform.
        importance_beta: exponent beta of the importance weights (1 / (N P))^beta, which correct the losses for
            non-uniform sampling probabilities P; 0 for none, which suits environments with little randomness.
        importance_beta_steps: beta grows linearly to 1 over this many transitions; 0 for a constant beta.
        double_q: whether the online network selects the target's action.
        normalize_returns: whether updates divide rewards by the largest absolute value so far of the running
            return, the sum of an episode's rewards in which earlier rewards are discounted. prior_scale is then in
            units of that value, and scaling all rewards changes nothing. Small costs before the first gain are
            scaled up as much as the gain would be.
        smallest_return_unit: with normalize_returns, rewards are divided by at least this value, so small costs
            before the first gain stay small. Scaling all rewards then changes nothing once returns are larger.
        n_step: number of rewards that a transition sums before it bootstraps.
        torso: "auto" chooses by the observation: a table for integers, "mlp" for vectors, "small_conv" for small
            images, "atari_conv" for pixels; or one of these three. The convolutions of other systems are
            "nature_conv" (DQN), "nature_conv_unscaled" (DQN on 0 to 255), "data_efficient_conv" (DER) and
            "impala_conv" (BBF).
        conv_dtype: dtype of the convolutions' activations, "float32" or "bfloat16", which takes less memory;
            parameters and everything else stay float32.
        prior_regularization: beta of the penalty beta / |D| |theta|^2.
        head_regularization: beta of the penalty beta / |D| times the mean square of the last layer's weights, or
            of the generated weights A xi + b if there is an index; the form used by the released code.
        gradient_penalty: factor of the squared norm of the gradient of the batch's mean Q-value.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1.5e-4
    max_grad_norm: float = 10.0
    optimizer: str = "auto"
    discount: float = 0.99
    batch_size: int = 128
    updates_per_step: int = 1
    update_period: int = 1
    target_period: int = 4
    min_replay: int = 128
    random_start: bool = True
    replay_capacity: int = 1_000_000
    recent_fraction: float = 0.0
    priority_fraction: float = 0.0
    importance_beta: float = 0.0
    importance_beta_steps: int = 0
    double_q: bool = True
    normalize_returns: bool = False
    smallest_return_unit: float = 0.0
    n_step: int = 1
    torso: str = "auto"
    conv_dtype: str = "float32"
    prior_regularization: float = 0.0
    head_regularization: float = 0.0
    gradient_penalty: float = 0.0

    def __post_init__(self) -> None:
        kinds: dict[type, tuple[type, str]] = {
            bool: (bool, "True or False"),
            int: (numbers.Integral, "a whole number"),
            float: (numbers.Real, "a number"),
            str: (str, "a string"),
        }
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is field.type:
                continue
            kind, text = kinds.get(cast(Any, field.type), (object, ""))
            if not isinstance(value, kind) or (isinstance(value, bool) and field.type in (int, float)):
                raise ValueError(f"{field.name} must be {text}, got {value!r}")
        self.require(1, "batch_size", "updates_per_step", "replay_capacity")
        self.require(1, "update_period", "target_period", high=MOST_STEPS)
        self.require(1, "n_step", high=LONGEST_SUM)
        self.require(0, "min_replay", "importance_beta_steps", high=MOST_STEPS)
        self.require(0, "learning_rate", "smallest_return_unit")
        self.require(0, "max_grad_norm", is_finite=False)
        self.require(0, "prior_regularization", "head_regularization", "gradient_penalty")
        self.require(1e-12, "adam_eps")
        self.require(0, "discount", "recent_fraction", "priority_fraction", "importance_beta", high=1)
        self.require(0, "adam_b1", "adam_b2", high=1 - 1e-6)
        self.require_widths("hidden_sizes")
        if self.torso not in TORSOS:
            raise ValueError(f"torso must be one of {', '.join(TORSOS)}, got {self.torso!r}")
        if self.conv_dtype not in CONV_DTYPES:
            raise ValueError(f"conv_dtype must be one of {', '.join(CONV_DTYPES)}, got {self.conv_dtype!r}")

    def require(self, low: float, *names: str, high: float = math.inf, is_finite: bool = True) -> None:
        """Raises ValueError unless all named settings are in [low, high] and, if `is_finite`, finite."""
        for name in names:
            value = getattr(self, name)
            if not low <= value <= high:
                bounds = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                raise ValueError(f"{name} must be {bounds}, got {value}")
            if is_finite and high == math.inf:
                checks.require_finite(**{name: value})

    def require_widths(self, name: str) -> None:
        """Raises ValueError unless the named setting is a non-empty sequence of positive layer widths."""
        checks.require_widths(name, getattr(self, name))


# Torsos for pixels, which have at most one dense layer.
_PIXEL_TORSOS: dict[str, Callable[..., nn.Module]] = {
    "atari_conv": torsos.AtariConv,
    "nature_conv": convolutions.PlainConv,
    "nature_conv_unscaled": functools.partial(convolutions.PlainConv, divisor=1.0),
    "data_efficient_conv": functools.partial(convolutions.PlainConv, layers=convolutions.DATA_EFFICIENT),
    "impala_conv": convolutions.ImpalaConv,
}
# Steps are counted in 32 bits.
MOST_STEPS = 2**31 - 1
# The rewards of a transition are summed by a loop that is unrolled when it is compiled.
LONGEST_SUM = 1_000
# The atoms of a return distribution are constants of a program.
MOST_ATOMS = 10_000
CONV_DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}
TORSOS = ("auto", "mlp", "small_conv", *_PIXEL_TORSOS)


def make_bare_torso(
    hidden_sizes: tuple[int, ...], spec: types.EnvironmentSpec, kind: str = "auto", conv_dtype: str = "float32"
) -> tuple[nn.Module, types.Array, tuple[int, ...]]:
    """Returns a torso without its dense layers, an example observation, and the widths of the omitted layers.

    The table for integer states is a dense layer that is kept.

    Args:
        hidden_sizes: widths of the layers.
        spec: the environment's spec.
        kind: one of `TORSOS`; "auto" chooses by the observation.
        conv_dtype: dtype of the convolutions' activations, one of `CONV_DTYPES`.
    """
    if spec.num_states is not None:
        torso, observation = make_torso(hidden_sizes[:1], spec)
        return torso, observation, hidden_sizes[1:]
    torso, observation = make_torso(hidden_sizes, spec, kind, conv_dtype)
    no_layers: dict[str, Any] = {"dense": None} if hasattr(torso, "dense") else {"features": ()}
    return torso.clone(**no_layers), observation, hidden_sizes


def make_torso(
    hidden_sizes: tuple[int, ...], spec: types.EnvironmentSpec, kind: str = "auto", conv_dtype: str = "float32"
) -> tuple[nn.Module, types.Array]:
    """Returns a torso with layers of these widths, and an example observation.

    Args:
        hidden_sizes: widths of the layers.
        spec: the environment's spec.
        kind: one of `TORSOS`; "auto" chooses by the observation.
        conv_dtype: dtype of the convolutions' activations, one of `CONV_DTYPES`.
    """
    if spec.num_states is not None:
        return torsos.OneHotMlp(spec.num_states, hidden_sizes), jnp.zeros((), jnp.int32)
    shape = spec.observation_shape
    is_picture = len(shape) == 3 and min(shape[:2]) >= torsos.SmallConv.SMALLEST_SIDE
    if kind == "auto":
        is_large = is_picture and min(shape[:2]) >= torsos.AtariConv.SMALLEST_SIDE
        kind = "atari_conv" if is_large else "small_conv" if is_picture else "mlp"
    if kind == "mlp":
        return torsos.Mlp(hidden_sizes), jnp.zeros(shape, spec.dtype)
    smallest = torsos.SmallConv.SMALLEST_SIDE
    if kind in _PIXEL_TORSOS and kind != "impala_conv":
        smallest = torsos.AtariConv.SMALLEST_SIDE
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise ValueError(
            f"torso={kind} is for images [height, width, channels] of at least {smallest} by {smallest}, got "
            f"shape {shape}: use torso=mlp"
        )
    if kind == "small_conv":
        return torsos.SmallConv(hidden_sizes, dtype=CONV_DTYPES[conv_dtype]), jnp.zeros(shape, spec.dtype)
    if len(hidden_sizes) != 1:
        raise ValueError(f"hidden_sizes must be a single width for pixels, got {hidden_sizes}")
    is_small = min(shape[:2]) < torsos.AtariConv.SMALLEST_SIDE  # small images such as grids, rather than pixels
    torso = _PIXEL_TORSOS[kind](dense=hidden_sizes[0], dtype=CONV_DTYPES[conv_dtype])
    return torso, jnp.zeros(shape, spec.dtype if is_small else jnp.uint8)


def make_agent(
    config: Config,
    spec: types.EnvironmentSpec,
    network: epistemic.EpistemicNetwork,
    loss: losses.Loss,
    perturbation: indices.IndexDistribution,
    *,
    action_index: str = "episode",
    num_ois: int = 1,
    resample_probability: float = 0.0,
    epsilon: Callable[[types.Array], types.Array] | float = 0.0,
    optimizer: langevin.StochasticTransformation | optax.GradientTransformation | None = None,
    polyak: float | None = None,
    acts_with_target: bool = False,
    reset: learner_lib.ResetRule | None = None,
    subsequences: subsequence.Rule | None = None,
    evaluation_index: indices.IndexDistribution | None = None,
) -> Agent:
    """Assembles an agent from its network and loss.

    Args:
        config: the agent's settings.
        spec: the environment's spec.
        network: the agent's network.
        loss: the agent's loss.
        perturbation: distribution of the perturbation z.
        action_index: see `actor.make_actor`; for training and evaluation.
        num_ois: see `actor.make_actor`; for training and evaluation.
        resample_probability: see `actor.make_actor`; for training only.
        epsilon: see `actor.make_actor`; for training only.
        optimizer: replaces the optimiser that `config` names.
        polyak: see `learner.make_learner`.
        acts_with_target: see `learner.make_learner`.
        reset: the `reset_rule` of `learner.make_learner`.
        subsequences: see `Agent`.
        evaluation_index: distribution of the index in evaluation; by default the network's.
    """
    loss = losses.with_prior_regularization(loss, config.prior_regularization)
    loss = losses.with_head_regularization(loss, network, config.head_regularization)
    loss = losses.with_gradient_penalty(loss, config.gradient_penalty)
    make_replay(config)  # rejects invalid combinations of settings before anything runs
    learner = learner_lib.make_learner(
        network,
        loss,
        optimizer or make_optimizer(config, spec, loss),
        target_period=config.target_period,
        polyak=polyak,
        acts_with_target=acts_with_target,
        reset_rule=reset,
    )
    make_actor = functools.partial(
        actor_lib.make_actor, num_actions=spec.num_actions, action_index=action_index, num_ois=num_ois
    )
    actor = make_actor(network.index, resample_probability=resample_probability, epsilon=epsilon)
    evaluation_index = network.index if evaluation_index is None else evaluation_index
    return Agent(
        config,
        network,
        learner,
        actor,
        make_actor(evaluation_index),
        evaluation_index,
        perturbation,
        spec=spec,
        subsequences=subsequences,
    )


def make_replay(config: Config, num_envs: int = 1) -> ring.Ring:
    """Builds the replay that `config` describes, for transitions of `num_envs` parallel environments."""
    return ring.make_ring(
        replay_capacity(config, num_envs), **sampling_rule(config)._asdict(), add_batch_size=num_envs
    )


def sampling_rule(config: Config) -> sampling.Rule:
    """Returns the rule by which transitions are sampled from a replay."""
    return sampling.Rule(
        config.recent_fraction, config.priority_fraction, config.importance_beta, config.importance_beta_steps
    )


def replay_capacity(config: Config, num_envs: int) -> int:
    """Returns the capacity of a replay on device: a multiple of the number of environments."""
    return -(-config.replay_capacity // num_envs) * num_envs


def make_optimizer(
    config: Config, spec: types.EnvironmentSpec, loss: losses.Loss
) -> optax.GradientTransformation | lazy_adam.LazyAdam:
    """Builds the optimiser that `config.optimizer` names."""
    constants = (config.learning_rate, config.adam_b1, config.adam_b2, config.adam_eps, config.max_grad_norm)
    adam, lazy = optimizers.Adam(*constants), lazy_adam.LazyAdam(*constants)
    name = config.optimizer
    if name == "auto":
        many = spec.num_states is not None and spec.num_states >= 1024
        name = "lazy_adam" if many and loss.has_local_gradient and lazy.is_accurate else "adam"
    if name == "adam":
        return adam.transformation()
    if name == "lazy_adam":
        if spec.num_states is None:
            raise ValueError("optimizer=lazy_adam needs integer observations: use optimizer=adam")
        return lazy
    raise ValueError(f"unknown optimizer {name!r}; choose one of auto, adam, lazy_adam")


def _learnable(agent: Agent) -> list[tuple[list[str], int]]:
    """Returns the path and size of every learnable array."""
    params = jax.eval_shape(lambda: agent.network.init(jax.random.key(0)).params)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/").split("/"), leaf.size)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def count_params(agent: Agent) -> int:
    """Returns the number of learnable parameters."""
    return sum(size for _, size in _learnable(agent))


def count_output_params(agent: Agent) -> int:
    """Returns the number of learnable parameters outside the torso, the part that differs between agents."""
    return sum(size for keys, size in _learnable(agent) if not any(key.startswith("torso") for key in keys))
