"""Compares the closed form with the deep agent's learner on one-hot features, trained to convergence."""

import dataclasses

import jax
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import one_hot


@dataclasses.dataclass(frozen=True)
class Config:
    """A random discounted MDP, some of its transitions, and settings of both methods.

    Attributes:
        num_states: S.
        num_actions: A.
        num_transitions: number of transitions from random pairs.
        discount: gamma.
        beta: prior regularisation.
        sigma: level of perturbation.
        index_dim: M.
        num_updates: number of updates of the learner, each with all transitions.
        learning_rate: Adam's initial learning rate, which decays to zero.
        seed: seed of all random numbers.
    """

    num_states: int = 8
    num_actions: int = 2
    num_transitions: int = 80
    discount: float = 0.9
    beta: float = 1.0
    sigma: float = 0.5
    index_dim: int = 8
    num_updates: int = 20_000
    learning_rate: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        checks.finite(self)
        checks.counts(self, "num_states", "num_actions", "num_transitions", "num_updates")
        checks.real_number("learning_rate", self.learning_rate, 0.0, is_open=True)
        checks.seeds(self, "seed")
        if not 0.0 <= self.discount < 1.0:
            raise ValueError(f"discount must be at least 0 and below 1, got {self.discount}")
        _ = self.prior

    @property
    def prior(self) -> hyperagent.Config:
        """The prior of both methods, with mean zero."""
        return hyperagent.Config(self.beta, self.sigma, prior_mean=0.0, index_dim=self.index_dim)


def posteriors(config: Config) -> tuple[one_hot.Posterior, one_hot.Posterior]:
    """Returns the posterior in closed form and the trained one, for the same prior, data and index mapping."""
    key = jax.random.key(config.seed)
    drawn = mdps.dirichlet(key, config.num_states, config.num_actions, 1, beta=3.0)
    mdp = mdps.make_discounted(drawn.transitions[0], drawn.rewards[0], drawn.start, config.discount)
    problem = one_hot.make_problem(mdp, key, config.num_transitions, config.prior)
    trained, z_0 = one_hot.trained_posterior(problem, key, config.num_updates, config.learning_rate)
    return one_hot.closed_form_posterior(problem, z_0), trained


def run(config: Config) -> dict[str, list[dict]]:
    """Returns the table `results`: all means and all entries of the covariance, by both methods."""
    exact, trained = posteriors(config)
    names = [f"({x}, {a})" for x, a in np.ndindex(config.num_states, config.num_actions)]
    rows = [
        {"quantity": "mean", "pair": name, "other_pair": "", "closed_form": x, "trained": y}
        for name, x, y in zip(names, exact.mean.ravel().tolist(), trained.mean.ravel().tolist(), strict=True)
    ]
    for i, j in zip(*np.triu_indices(len(names)), strict=True):
        rows.append(
            {
                "quantity": "covariance",
                "pair": names[i],
                "other_pair": names[j],
                "closed_form": float(exact.covariance[i, j]),
                "trained": float(trained.covariance[i, j]),
            }
        )
    return {"results": rows}
