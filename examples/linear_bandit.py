"""A linear-Gaussian contextual bandit: the hypermodel, trained online, compared with the exact posterior."""

from absl import app
from absl import flags
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hyperagent_jax as hx

# Features, arms, index dimension, standard deviations of the noise and of the weights.
DIM, ARMS, M, SIGMA, SIGMA_0 = 4, 3, 128, 0.5, 1.0


class Features(nn.Module):
    """The context itself, so that only the last layer is learned."""

    def __call__(self, context):
        return context


def exact_posterior(contexts, arms, rewards, prior_mean):
    """Means [ARMS, DIM] and covariances [ARMS, DIM, DIM] of the arms' weights, by conjugacy."""
    means, covariances = [], []
    for arm in range(ARMS):
        x, r = contexts[arms == arm], rewards[arms == arm]
        covariance = np.linalg.inv(x.T @ x / SIGMA**2 + np.eye(DIM) / SIGMA_0**2)
        covariances.append(covariance)
        means.append(covariance @ (x.T @ r / SIGMA**2 + prior_mean[arm] / SIGMA_0**2))
    return np.array(means), np.array(covariances)


def main(rounds: int = 300, seed: int = 0) -> dict[str, float]:
    """Plays `rounds` rounds with each; returns regrets and the errors of the hypermodel's final posterior."""
    rng, (z_key, init_key, run_key) = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 3)
    weights = SIGMA_0 * rng.normal(size=(ARMS, DIM))
    contexts, noise = rng.normal(size=(rounds, DIM)), SIGMA * rng.normal(size=(rounds, ARMS))

    index = hx.indices.gaussian(M)
    network = hx.make_hyper_network(Features(), ARMS, index, contexts[0], prior=hx.hyper_prior(SIGMA_0))
    loss = hx.losses.make_td_loss(
        network, kind="exact", sigma=SIGMA, perturbation=hx.indices.sphere(M), double_q=False
    )
    z = np.asarray(loss.perturbation.sample(z_key, (rounds,)))
    loss = hx.losses.with_prior_regularization(loss, SIGMA**2 / SIGMA_0**2)
    learner = hx.make_learner(network, loss, optax.adam(optax.exponential_decay(0.03, 20 * rounds, 0.05)))
    state = learner.init(init_key)
    unit = jnp.eye(DIM)  # the belief at a unit vector holds one row of every arm's weights
    prior_mean = np.asarray(jax.vmap(network.prior, (None, 0))(state.prior, unit))[:, :, -1].T

    @jax.jit
    def learn(state, data, count, key):
        """Makes 20 updates with all `count` transitions so far, some of them repeated to fill the batch."""
        rows = jnp.arange(rounds) % count
        batch = hx.Batch(jax.tree.map(lambda x: x[rows], data), count)
        return jax.lax.fori_loop(0, 20, lambda _, state: learner.step(state, batch, key)[0], state)

    values, regret = jax.jit(learner.values), {"hypermodel": 0.0, "exact": 0.0}
    arms = {name: np.zeros(rounds, int) for name in regret}
    for k, (index_key, learn_key) in enumerate(jax.random.split(run_key, (rounds, 2))):
        draw = np.asarray(values(state, contexts[k], index.sample(index_key, (1,))))[0]
        arms["hypermodel"][k] = draw.argmax()
        played = arms["exact"][:k]
        means, covariances = exact_posterior(
            contexts[:k],
            played,
            (weights[played] * contexts[:k]).sum(-1) + noise[np.arange(k), played],
            prior_mean,
        )
        sampled = [rng.multivariate_normal(*posterior) for posterior in zip(means, covariances, strict=True)]
        arms["exact"][k] = (sampled @ contexts[k]).argmax()
        gains = weights @ contexts[k]
        for name in regret:
            regret[name] += gains.max() - gains[arms[name][k]]
        rewards = (weights[arms["hypermodel"]] * contexts).sum(-1) + noise[np.arange(rounds), arms["hypermodel"]]
        data = hx.Transition(contexts, arms["hypermodel"], rewards, np.zeros(rounds), contexts, z)  # gamma is 0
        state = learn(state, data, k + 1, learn_key)

    beliefs = np.asarray(jax.vmap(network.belief, (None, 0))(learner.variables(state), unit)).transpose(1, 0, 2)
    means, covariances = exact_posterior(contexts, arms["hypermodel"], rewards, prior_mean)
    learned = beliefs[..., :-1] @ beliefs[..., :-1].transpose(0, 2, 1)
    relative = lambda x, y: float(np.linalg.norm(x - y) / np.linalg.norm(y))
    return {
        "regret": float(regret["hypermodel"]),
        "regret of exact Thompson sampling": float(regret["exact"]),
        "relative error of the mean": relative(beliefs[..., -1], means),
        "relative error of the covariance": relative(learned, covariances),
    }


if __name__ == "__main__":
    ROUNDS = flags.DEFINE_integer("rounds", 300, "Rounds to play.", lower_bound=1)
    app.run(lambda _: print("\n".join(f"{name}: {value:.3f}" for name, value in main(ROUNDS.value).items())))
