"""HyperAgent in JAX: posterior sampling over Q* with a last-layer linear hypermodel (ICML 2024).

    import hyperagent_jax as hx

Start here, by what you want to do:

Use a finished agent
    agents.make(name, spec, **settings)     an Agent by name; agents.CONFIGS lists names and default settings
    save_agent(path, agent, variables)      saves a trained agent; load_agent(path) returns (agent, variables)
    Policy(agent, variables, key)           policy(observation, is_first) -> action
    environments, runners                   packages: environments, and loops that train agents in them
    experiment                              package behind the scripts in experiments/: sweeps, resuming, csv files

Build your own agent from parts
    make_hyper_network(torso, num_actions, index, observation, prior=hyper_prior(scale))
    losses.make_td_loss(network, ...)       loss of one transition
    make_learner(network, loss, optimizer)  init, step, variables, values: pure functions
    make_actor(index, num_actions)          chooses actions from sampled values
    make_ring(capacity, ...)                replay on device; any other replay works, too
    Transition, Batch                       the inputs of a learner

Query a network's uncertainty
    posterior.mean_and_std(network, variables, observations)
    posterior.sample(network, variables, observations, key, num_samples)

Choose the parts of a network
    torsos                                  feature networks; adapters for haiku, flax.nnx and equinox
    HyperLinear, heads                      the last-layer hypermodel as a flax layer, and other output layers
    hyper_prior, ensemble_prior, no_prior   fixed priors
    indices                                 distributions of index and perturbation
    make_ensemble_network, make_epinet_network, make_hypermodel_network, make_plain_network
    EpistemicNetwork                        the interface of all networks, to implement your own

Further modules: optimizers, checkpoint.
"""

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import environments
from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import posterior
from hyperagent_jax import runners
from hyperagent_jax.actor import Actor
from hyperagent_jax.actor import make_actor
from hyperagent_jax.agents.policy import Policy
from hyperagent_jax.agents.saving import load_agent
from hyperagent_jax.agents.saving import save_agent
from hyperagent_jax.learner import make_learner
from hyperagent_jax.learner_types import Learner
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import torsos
from hyperagent_jax.networks.epinet import make_epinet_network
from hyperagent_jax.networks.epistemic import EpistemicNetwork
from hyperagent_jax.networks.epistemic import make_ensemble_network
from hyperagent_jax.networks.epistemic import make_hyper_network
from hyperagent_jax.networks.epistemic import make_plain_network
from hyperagent_jax.networks.heads import HyperLinear
from hyperagent_jax.networks.hypermodel import make_hypermodel_network
from hyperagent_jax.networks.priors import ensemble_prior
from hyperagent_jax.networks.priors import hyper_prior
from hyperagent_jax.networks.priors import no_prior
from hyperagent_jax.replay.ring import make_ring
from hyperagent_jax.types import Batch
from hyperagent_jax.types import EnvironmentSpec
from hyperagent_jax.types import LearnerState
from hyperagent_jax.types import Transition
from hyperagent_jax.types import Variables

__version__ = "0.1.0"

__all__ = [
    # Finished agents
    "agents",
    "environments",
    "load_agent",
    "Policy",
    "runners",
    "save_agent",
    # Parts of an agent
    "Actor",
    "Batch",
    "EnvironmentSpec",
    "Learner",
    "LearnerState",
    "make_actor",
    "make_learner",
    "make_ring",
    "Transition",
    "Variables",
    # Losses
    "losses",
    # Uncertainty
    "posterior",
    # Networks and their parts
    "ensemble_prior",
    "EpistemicNetwork",
    "heads",
    "hyper_prior",
    "HyperLinear",
    "indices",
    "make_ensemble_network",
    "make_epinet_network",
    "make_hyper_network",
    "make_hypermodel_network",
    "make_plain_network",
    "no_prior",
    "torsos",
    # Further modules
    "checkpoint",
    "optimizers",
]
