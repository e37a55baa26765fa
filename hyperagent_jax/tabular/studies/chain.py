"""What keeps a reward that was found from being exploited: Q's mean and spread on a chain, next to the truth.

At discount 0.99 the right action of a state is better than the wrong one by 2% of its value. An agent that samples
acts well only once the spread of this gap over indices, and the error of its mean, are smaller.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.environments import finite
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import scan

# Agents and their settings, by what differs from the paper's settings.
VARIANTS: dict[str, tuple[str, dict]] = {
    "prior_scale 10": ("hyperagent", dict()),
    "prior_scale 10, sigma 0": ("hyperagent", dict(sigma=0.0)),
    "prior_scale 10, target_period 100": ("hyperagent", dict(target_period=100)),
    "prior_scale 1": ("hyperagent", dict(prior_scale=1.0)),
    "unit_prior 1": ("hyperagent", dict(unit_prior=True, prior_scale=1.0)),
    "unit_prior 1, target_period 100": (
        "hyperagent",
        dict(unit_prior=True, prior_scale=1.0, target_period=100),
    ),
    "hyperagent_optimistic": ("hyperagent_optimistic", dict()),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """A chain, as `explore/chain_20`, and the runs on it.

    Attributes:
        length: number of states.
        max_steps: episodes are truncated after this many steps.
        num_steps: interactions of a run.
        eval_every: interactions between evaluations.
        num_seeds: seeds per variant.
        seed: the first of them.
    """

    length: int = 20
    max_steps: int = 25
    num_steps: int = 30_000
    eval_every: int = 6_000
    num_seeds: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts(self, "length", "max_steps", "num_steps", "eval_every", "num_seeds")
        checks.seeds(self, "seed", self.num_seeds)


def true_gaps(length: int, discount: float) -> np.ndarray:
    """Returns how much better every state's right action is: gamma^d (1 - gamma^2), d steps from the reward."""
    values = discount ** np.arange(length - 1.0, -1.0, -1.0)
    back = discount * values[np.maximum(np.arange(length) - 1, 0)]
    return values - back


def gaps(beliefs: np.ndarray, right: np.ndarray, second_moment: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation over indices of Q(s, right) - Q(s, wrong), [num_states] each.

    Args:
        beliefs: coefficients [num_states, 2, M + 1].
        right: the right action of every state.
        second_moment: c, where E[xi xi^T] = c I.
    """
    states = np.arange(len(right))
    difference = beliefs[states, right] - beliefs[states, 1 - right]
    return difference[:, -1], np.sqrt(second_moment) * np.linalg.norm(difference[:, :-1], axis=1)


def run(config: Config) -> dict[str, list[dict]]:
    """Returns `results`: every state's gap, its mean, spread and the truth; `returns`: those of both policies."""
    environment = finite.make_chain(config.length, config.max_steps)
    right = finite.chain_actions(config.length)
    rows, returns = [], []
    for variant, (name, settings) in VARIANTS.items():
        agent = agents.make(name, environment.spec, **settings)
        runner, second_moment = scan.make_runner(agent, environment), agent.network.index.second_moment
        assert second_moment is not None
        truth = true_gaps(config.length, agent.config.discount)
        advance = jax.jit(runner.run)
        evaluators = {
            greedy_in: jax.jit(
                jax.vmap(
                    evaluate.make_evaluator(
                        agent, environment, num_episodes=20, max_steps=config.max_steps, greedy_in=greedy_in
                    ),
                    (0, None, 0),
                )
            )
            for greedy_in in ("sample", "mean")
        }

        def coefficients(variables: types.Variables, observation: jax.Array, network: Any = agent.network) -> Any:
            return network.coefficients(network.belief(variables, observation))

        beliefs_of = jax.jit(jax.vmap(jax.vmap(coefficients, (None, 0)), (0, None)))
        seeds = range(config.seed, config.seed + config.num_seeds)
        states = jax.vmap(runner.init, (0, None))(jax.vmap(jax.random.key)(jnp.array(seeds)), None)
        for start in range(0, config.num_steps, config.eval_every):
            end = min(start + config.eval_every, config.num_steps)
            states, _ = advance(states, start, end - start)
            variables = jax.vmap(agent.learner.variables)(states.learner)
            keys = jax.vmap(lambda key, end=end: types.fold_in_tag(jax.random.fold_in(key, end), "evaluation"))(
                states.key
            )
            scores = {kind: np.mean(evaluator(variables, None, keys), 1) for kind, evaluator in evaluators.items()}
            beliefs = np.asarray(beliefs_of(variables, jnp.arange(config.length)), np.float64)
            for i, seed in enumerate(seeds):
                place = {"variant": variant, "seed": seed, "interactions": end}
                returns.append({**place, "sample": scores["sample"][i], "mean": scores["mean"][i]})
                mean, spread = gaps(beliefs[i], right, second_moment)
                rows += [
                    {**place, "state": s, "true_gap": truth[s], "mean_gap": mean[s], "spread": spread[s]}
                    for s in range(config.length)
                ]
    return {"results": rows, "returns": returns}
