"""HyperAgent in JAX: posterior sampling over Q* with a last-layer linear hypermodel."""

from hyperagent_jax import agents
from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax.actor import Actor
from hyperagent_jax.actor import make_actor
from hyperagent_jax.learner import Learner
from hyperagent_jax.learner import LearnerState
from hyperagent_jax.learner import make_learner
from hyperagent_jax.networks import torsos
from hyperagent_jax.networks.epistemic import EpistemicNetwork
from hyperagent_jax.networks.epistemic import make_ensemble_network
from hyperagent_jax.networks.epistemic import make_hyper_network
from hyperagent_jax.networks.epistemic import make_plain_network
from hyperagent_jax.replay.ring import make_ring
from hyperagent_jax.types import Batch
from hyperagent_jax.types import EnvironmentSpec
from hyperagent_jax.types import Transition
from hyperagent_jax.types import Variables

__version__ = "0.1.0"
