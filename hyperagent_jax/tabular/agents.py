"""All tabular agents by name, built from one set of settings."""

from collections.abc import Callable
import dataclasses
import math

from hyperagent_jax import checks
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import bayes_ucbvi
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import lmc_lsvi
from hyperagent_jax.tabular import psrl
from hyperagent_jax.tabular import q_learning
from hyperagent_jax.tabular import rmax


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that experiments share between all their agents.

    Attributes:
        num_episodes: K.
        beta: beta of Assumption 2, at least 3: prior weight of hyperagent_theory and psrl.
        delta: delta in M(1/2) of hyperagent_theory.
        practical_beta: prior weight of all other agents.
        sigma: level of perturbation of all agents except hyperagent_theory and lmc_lsvi.
        lmc_sigma: level of perturbation of lmc_lsvi, whose regularisation is 1, as chosen by its authors.
        prior_mean: mu_0 of all agents except hyperagent_theory; "horizon" is the largest possible return if
            rewards are at most 1.
        index_dim: M of all agents except hyperagent_theory.
        num_ois: number of indices over which hyperagent_ois maximises.
    """

    num_episodes: int = 1000
    beta: float = 3.0
    delta: float = 0.1
    practical_beta: float = 0.01
    sigma: float = 0.1
    lmc_sigma: float = 1.0
    prior_mean: str = "horizon"
    index_dim: int = 16
    num_ois: int = 5

    def __post_init__(self) -> None:
        checks.counts(self, "num_episodes")
        checks.finite(self)
        if self.prior_mean != "horizon":
            try:
                is_number = math.isfinite(float(self.prior_mean))
            except ValueError:
                is_number = False
            if not is_number:
                raise ValueError(f'prior_mean must be a number or "horizon", got {self.prior_mean!r}')
        for name in ("beta", "practical_beta"):
            checks.real_number(name, getattr(self, name), 0.0, is_open=True)
        checks.real_number("delta", self.delta, 0.0, 1.0, is_open=True)
        checks.real_number("lmc_sigma", self.lmc_sigma, 0.0)
        self.practical(base.Size(1, 1, 1), num_ois=self.num_ois)  # checks the values

    def practical(self, size: base.Size, num_ois: int = 1) -> hyperagent.Config:
        """Returns HyperAgent's practical preset."""
        prior_mean = float(size.horizon if self.prior_mean == "horizon" else self.prior_mean)
        return hyperagent.Config(self.practical_beta, self.sigma, prior_mean, self.index_dim, num_ois)


def _hyperagent_theory(settings: Settings, size: base.Size) -> base.Agent:
    config = hyperagent.theory(size, settings.num_episodes, settings.beta, settings.delta)
    return hyperagent.make_agent(config, size)


def _lmc_lsvi(settings: Settings, size: base.Size) -> base.Agent:
    return lmc_lsvi.make_agent(lmc_lsvi.Config(settings.num_episodes, 1.0, settings.lmc_sigma), size)


AGENTS: dict[str, Callable[[Settings, base.Size], base.Agent]] = {
    "hyperagent": lambda settings, size: hyperagent.make_agent(settings.practical(size), size),
    "hyperagent_ois": lambda settings, size: hyperagent.make_agent(
        settings.practical(size, settings.num_ois), size
    ),
    "hyperagent_theory": _hyperagent_theory,
    "rlsvi": lambda settings, size: hyperagent.make_rlsvi(settings.practical(size), size),
    "psrl": lambda settings, size: psrl.make_agent(psrl.Config(settings.beta), size),
    "lmc_lsvi": _lmc_lsvi,
    "bayes_ucbvi": lambda settings, size: bayes_ucbvi.make_agent(bayes_ucbvi.Config(), size),
    "rmax": lambda settings, size: rmax.make_agent(rmax.Config(float(size.horizon)), size),
    "q_learning": lambda settings, size: q_learning.make_agent(q_learning.Config(), size),
}


def check_names(names: tuple[str, ...]) -> None:
    """Raises ValueError for unknown agent names."""
    for name in names:
        if name not in AGENTS:
            raise ValueError(f"agents must be among {', '.join(AGENTS)}, got {name!r}")
