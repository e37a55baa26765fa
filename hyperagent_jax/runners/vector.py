"""Training loop for vectorised environments outside JAX, such as envpool's, which step while the learner updates.

A round chooses the actions of all waiting environments, sends them, adds the observed steps to the replay,
dispatches the updates that are due, chooses the batches of the next ones, and receives. JAX dispatches updates
asynchronously, envpool steps in its own threads, and another thread gathers batches, so on several cores a round
takes hardly longer than its updates.

A run is determined by its seed alone: batches are chosen at fixed points of a round and do not depend on timing.
(Asynchronous environments are the exception: the fastest ones are served first.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import prng
from hyperagent_jax import sharding
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.replay import frames as frames_lib


def replay_settings(
    agent: agents_base.Agent, num_envs: int, stack_shape: tuple[int, int, int]
) -> frames_lib.Settings:
    """Returns the settings of the replay that an agent needs for `num_envs` environments."""
    config = agent.config
    if agent.subsequences is not None:
        raise ValueError(
            f"{agent.name or 'this agent'} needs the steps that follow a transition, which the frame replay "
            "does not provide: use run_jax.py"
        )
    if config.normalize_returns:
        raise ValueError("normalize_returns is not for Atari, where rewards are clipped to [-1, 1]: omit it")
    prior = jax.eval_shape(
        lambda key: agent.network.prior(agent.network.init(key).prior, jnp.zeros(_last(stack_shape), jnp.uint8)),
        jax.random.key(0),
    )
    return frames_lib.Settings(
        config.replay_capacity,
        num_envs,
        stack_shape,
        config.n_step,
        config.discount,
        agent.perturbation.dim,
        prior.shape,
        agents_base.sampling_rule(config),
    )


def _last(stack_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns the shape of a stack with its frames last, as networks expect it."""
    frames, height, width = stack_shape
    return height, width, frames


def frames_last(stacks: types.Array) -> types.Array:
    """Moves the frames of stacks [..., frames, height, width] last, as networks expect them."""
    return jnp.moveaxis(stacks, -3, -1)


class Totals(NamedTuple):
    """Totals since they were last taken.

    Attributes:
        loss: sum of the losses of all updates.
        updates: number of updates.
        scores: scores of the episodes that ended.
    """

    loss: float
    updates: int
    scores: list[float]


def make_act(agent: agents_base.Agent) -> Callable[..., tuple[types.Array, types.Array, types.Array, types.Array]]:
    """Builds a function that acts in all waiting environments, with the arguments of `act` below.

    It returns indices, actions, and the prior's beliefs and the perturbations of the coming transitions.
    """

    def act(
        learner: types.LearnerState,
        indices: types.Array,
        key: types.PRNGKey,
        stacks: types.Array,
        env_ids: types.Array,
        is_first: types.Array,
        number: types.Array,
        is_random: types.Array,
    ) -> tuple[types.Array, types.Array, types.Array, types.Array]:
        key = types.fold_in_tag(jax.random.fold_in(key, number), "act")
        observations = frames_last(stacks)
        noise = jax.vmap(agent.actor.draw)(jax.random.split(key, len(env_ids)))
        # The prior is evaluated here, once per observation, and never in an update.
        prior = jax.vmap(agent.network.prior, (None, 0))(learner.prior, observations)

        def choose(
            observation: types.Array,
            prior: types.Belief,
            indices: types.Array,
            is_first: types.Array,
            noise: actor_lib.ActorNoise,
        ) -> tuple[types.Array, types.Array]:
            return agent.actor.choose(
                lambda indices: agent.learner.values(learner, observation, indices, prior),
                indices,
                is_first,
                noise,
                learner.count,
            )

        greedy, own = jax.vmap(choose)(observations, prior, indices[env_ids], is_first, noise)
        actions = jnp.where(is_random, jax.vmap(actor_lib.random_action)(noise), greedy)
        perturbations = agent.perturbation.sample(types.fold_in_tag(key, "perturbation"), (len(env_ids),))
        return indices.at[env_ids].set(own), actions, prior, perturbations

    return act


def make_update(agent: agents_base.Agent) -> Callable[..., tuple[types.LearnerState, types.Array, types.Array]]:
    """Builds a function that maps (learner, sum of losses, key, batch) to (learner, sum of losses, losses [B])."""

    def update(
        learner: types.LearnerState, loss: types.Array, key: types.PRNGKey, batch: types.Batch
    ) -> tuple[types.LearnerState, types.Array, types.Array]:
        key = types.fold_in_tag(jax.random.fold_in(key, learner.count), "update")
        t = batch.transitions
        t = t._replace(o_tm1=frames_last(t.o_tm1), o_t=frames_last(t.o_t))
        learner, info = agent.learner.step(learner, batch._replace(transitions=t), key)
        return learner, loss + info["loss"], info["losses"]

    return update


class VectorRunner:
    """Runs an agent in a vector environment; `advance` runs one round."""

    def __init__(
        self,
        agent: agents_base.Agent,
        environment: environments_base.FrameEnvironment,
        seed: int,
        mesh: jax.sharding.Mesh | None = None,
        part: int | None = None,
    ):
        """Creates a runner.

        Args:
            agent: the agent.
            environment: its environments.
            seed: seed of the run.
            mesh: devices to split every batch over, from `sharding.batch_mesh`; None for the default device.
            part: number of this runner among those that share one learner, which act and sample with random
                numbers of their own; None if it is the only one.
        """
        self.agent = agent
        self.environment = environment
        self.replay = frames_lib.FrameReplay(replay_settings(agent, environment.num_envs, environment.stack_shape))
        self._seeds: tuple[int, ...] = (seed,)
        self._is_synchronous = environment.batch_size == environment.num_envs
        key = jax.random.key(seed)
        self._key = prng.hash_key(types.fold_in_tag(key, "run"))
        self._act_key = self._key
        if part is not None:
            self._seeds, self._act_key = (seed, part), jax.random.fold_in(self._key, part)
        self.learner = jax.jit(agent.learner.init)(types.fold_in_tag(key, "learner"))
        self._indices = jax.jit(
            lambda: jax.vmap(agent.actor.init)(
                jax.random.split(types.fold_in_tag(self._act_key, "actor"), environment.num_envs)
            )
        )()
        self._loss = jnp.zeros(())
        self._act = jax.jit(make_act(agent), donate_argnums=1)
        update = make_update(agent)
        self._update = sharding.jit_update(update, mesh) if mesh else jax.jit(update, donate_argnums=(0, 1))
        self.rounds = 0
        self.interactions = 0
        self.updates = 0
        self.games = 0
        self._updates_before = 0
        self._scores: list[float] = []
        self._game_scores = np.zeros(environment.num_envs)
        self._log = bytearray()  # all actions so far, one byte each
        self._priorities: list[tuple[np.ndarray, types.Array]] = []  # of updates that may still be running
        self._chosen = 0  # batches chosen ahead of their updates
        self._step: environments_base.VectorStep | None = None

    def begin(self) -> None:
        """Resets all environments."""
        self._step = self.environment.reset()
        self._account(self._step)

    def _current_step(self) -> environments_base.VectorStep:
        if self._step is None:
            raise ValueError("the environments have not been reset: call `begin` or `restore` first")
        return self._step

    def _due(self, interactions: int) -> int:
        """Returns the number of updates that are due after this many interactions."""
        config = self.agent.config
        return config.updates_per_step * (max(0, interactions - config.min_replay) // config.update_period)

    def advance(self) -> None:
        """Runs one round."""
        step = self._current_step()
        self._indices, *outputs = self._act(
            self.learner,
            self._indices,
            self._act_key,
            step.observations,
            step.env_ids,
            step.is_first,
            self.rounds,
            self.agent.config.random_start and self.interactions < self.agent.config.min_replay,
        )
        actions, priors, perturbations = map(np.asarray, outputs)  # waits for all updates so far
        actions = self._decide(actions)
        self._apply_priorities()
        self.environment.send(actions, step.env_ids)
        if self._is_synchronous:
            self._log.extend(actions.astype(np.uint8).tobytes())
        self.rounds += 1
        self.replay.add(step, actions, priors, perturbations)
        # An action sent to an environment whose episode has ended is not an interaction.
        coming = self._count(int(np.sum(~step.last)), actions)
        self._learn()
        self._choose_batches(self.interactions + coming)
        self._step = self.environment.recv()
        self._account(self._step)
        self.interactions += coming if self._is_synchronous else int(np.sum(~self._step.is_first))

    def _decide(self, actions: np.ndarray) -> np.ndarray:
        """The actions to take, of those that the agent chose; all updates are complete by now."""
        return actions

    def _count(self, coming: int, actions: np.ndarray) -> int:
        """The interactions of this round: of synchronous environments, how many `actions` continue an episode."""
        del actions
        return coming

    def _has_transitions(self) -> bool:
        return self.replay.size > 0

    def _learn(self) -> None:
        for _ in range(self._due(self.interactions) - self.updates):
            if self._chosen:
                batch, numbers = self.replay.take()
                self._chosen -= 1
            elif self._has_transitions():
                batch, numbers = self.replay.sample(self._bits(self.updates))
            else:
                return  # no transition is complete yet
            self.learner, self._loss, losses = self._update(self.learner, self._loss, self._key, batch)
            self.updates += 1
            if self.agent.config.priority_fraction:
                self._priorities.append((numbers, losses))

    def _bits(self, number: int) -> np.ndarray:
        return self.replay.draw(self._seeds[0], number, self.agent.config.batch_size, *self._seeds[1:])

    def _choose_batches(self, interactions: int) -> None:
        """Chooses the batches of the updates that will be due after this many interactions."""
        if self._has_transitions():
            for number in range(self.updates + self._chosen, self._due(interactions)):
                self.replay.prefetch(self._bits(number))
                self._chosen += 1

    def _apply_priorities(self) -> None:
        for numbers, losses in self._priorities:
            self.replay.update(numbers, np.asarray(losses))
        self._priorities.clear()

    def _account(self, step: environments_base.VectorStep) -> None:
        self._game_scores[step.env_ids] += step.scores
        for env in step.env_ids[step.game_over]:
            self._scores.append(float(self._game_scores[env]))
            self._game_scores[env] = 0.0
            self.games += 1

    def take_totals(self) -> Totals:
        """Returns the totals since the last call; waits for all updates."""
        totals = Totals(float(self._loss), self.updates - self._updates_before, self._scores)
        self._loss, self._updates_before, self._scores = jnp.zeros(()), self.updates, []
        return totals

    def count_games(self) -> int:
        """Returns how many games have ended."""
        return self.games

    @property
    def variables(self) -> types.Variables:
        """The network's variables, to evaluate."""
        return self.agent.learner.variables(self.learner)

    @property
    def recent_scores(self) -> list[float]:
        """Returns the scores of the episodes that ended since totals were last taken."""
        return self._scores

    def facts(self) -> dict[str, Any]:
        """Returns the counters as plain numbers; together with `tree` they are the state to save."""
        return {
            "rounds": self.rounds,
            "interactions": self.interactions,
            "updates": self.updates,
            "games": self.games,
            "updates_before": self._updates_before,
            "scores": self._scores,
            "game_scores": self._game_scores.tolist(),
        }

    def tree(self) -> dict[str, Any]:
        """Returns the arrays to save."""
        batch_size = self.agent.config.batch_size
        numbers = np.array([numbers for numbers, _ in self._priorities], np.int64).reshape(-1, batch_size)
        losses = np.array([losses for _, losses in self._priorities], np.float32).reshape(-1, batch_size)
        return {
            "learner": self.learner,
            "indices": self._indices,
            "loss": self._loss,
            "replay": self.replay.state(),
            "log": np.frombuffer(bytes(self._log), np.uint8).reshape(-1, self.environment.num_envs),
            "step": self._current_step()._asdict(),
            "numbers": numbers,
            "losses": losses,
        }

    @property
    def loss_is_finite(self) -> bool:
        """Returns whether all losses since the last `take_totals` are finite; waits for all updates."""
        return bool(np.isfinite(self._loss))

    def restore(
        self, facts: dict[str, Any], load: Callable[[Any], Any], should_stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Restores the state that another runner saved.

        An emulator's state cannot be saved, but it follows from its seed and its actions, so the actions are
        replayed, at the speed of the environments alone. Asynchronous environments start new episodes.

        Args:
            facts: the other runner's `facts`.
            load: maps a tree with the structure of `tree` to the saved one.
            should_stop: called before every replayed step.

        Returns:
            True if restored; False if stopped before, in which case the runner must be discarded.
        """
        step = self._step = self.environment.reset()
        tree = load(
            {
                **self.tree(),
                "replay": self.replay.like(),
                "log": checkpoint.Unsized(np.uint8),
                "numbers": checkpoint.Unsized(np.int64),
                "losses": checkpoint.Unsized(np.float32),
                "step": {name: np.empty_like(array) for name, array in step._asdict().items()},
            }
        )
        self.replay.refresh()
        self.learner, self._indices, self._loss = tree["learner"], tree["indices"], tree["loss"]
        self.rounds, self.interactions, self.updates = facts["rounds"], facts["interactions"], facts["updates"]
        self.games, self._updates_before = facts["games"], facts["updates_before"]
        self._scores, self._game_scores = list(facts["scores"]), np.array(facts["game_scores"])
        self._log = bytearray(tree["log"].tobytes())
        saved = environments_base.VectorStep(**tree["step"])
        if self._is_synchronous:
            for actions in tree["log"]:
                if should_stop():
                    return False
                self.environment.send(actions, step.env_ids)
                step = self._step = self.environment.recv()
            if not all(np.array_equal(a, b) for a, b in zip(step, saved, strict=True)):
                raise errors.UserError(
                    "replaying the recorded actions gave different observations (a different version of "
                    "envpool?): the run cannot be resumed exactly"
                )
            # Choose these before the priorities of the last updates are applied, as in an uninterrupted run.
            self._choose_batches(self.interactions)
        else:
            self._game_scores[:] = 0.0
        self._priorities = list(zip(tree["numbers"], tree["losses"], strict=True))
        return True

    def close(self) -> None:
        """Closes environments and stops threads."""
        self.environment.close()
        self.replay.close()
