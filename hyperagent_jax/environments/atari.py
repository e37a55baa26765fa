"""Atari games through envpool; the only file that imports envpool."""

import functools
import types as python_types
from typing import Any

import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import base

# The 26 games of table "tab:atari_score" and the 29 of "tab:atari_score_other".
_GAMES_26 = """
    Alien Amidar Assault Asterix BankHeist BattleZone Boxing Breakout ChopperCommand CrazyClimber DemonAttack
    Freeway Frostbite Gopher Hero Jamesbond Kangaroo Krull KungFuMaster MsPacman Pong PrivateEye Qbert
    RoadRunner Seaquest UpNDown
"""
_OTHER_29 = """
    Asteroids Atlantis BeamRider Berzerk Bowling Centipede Defender DoubleDunk Enduro FishingDerby Gravitar
    IceHockey NameThisGame Phoenix Pitfall Riverraid Robotank Skiing Solaris SpaceInvaders StarGunner Tennis
    TimePilot Tutankham Venture VideoPinball WizardOfWor YarsRevenge Zaxxon
"""
GAMES_26 = tuple(_GAMES_26.split())
GAMES_55 = tuple(sorted((*GAMES_26, *_OTHER_29.split())))
GAME_SETS = {"all26": GAMES_26, "all55": GAMES_55}

# Table "Detailed settings for Atari games".
FRAME_SKIP = 4
STACK_SHAPE = (4, 84, 84)
MAX_FRAMES = 108_000
# Actions of the console; most games use fewer.
MAX_ACTIONS = 18
_SETTINGS = dict(
    stack_num=STACK_SHAPE[0],
    frame_skip=FRAME_SKIP,
    gray_scale=True,
    img_height=STACK_SHAPE[1],
    img_width=STACK_SHAPE[2],
    repeat_action_probability=0.0,
    # Episodes start as in the released code: up to 30 no-ops, and FIRE where a game waits for it.
    noop_max=30,
    use_fire_reset=True,
)


def _envpool() -> python_types.ModuleType:
    try:
        import envpool
    except ImportError as error:
        raise errors.UserError("envpool is not installed: pip install 'hyperagent_jax[atari]'") from error
    return envpool


def check_game(game: str) -> None:
    """Raises UserError for a game that envpool does not have."""
    specs = _envpool().registration.registry.specs  # includes environments other than Atari's
    known = {name.removesuffix("-v5") for name, (module, *_) in specs.items() if module == "envpool.atari"}
    if game not in known:
        close = [name for name in GAMES_55 if name.lower() == game.lower()]
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(GAMES_55)}"
        raise errors.UserError(f"unknown game {game!r}; {hint}")


def _make(game: str, num_envs: int, seed: tuple[int, ...], max_frames: int, **settings: Any) -> Any:
    number = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**31
    return _envpool().make_gymnasium(
        f"{game}-v5",
        num_envs=num_envs,
        seed=number,
        max_episode_steps=max_frames // FRAME_SKIP,
        **{**_SETTINGS, **settings},
    )


@functools.cache
def num_actions(game: str) -> int:
    """Returns the number of actions of a game."""
    check_game(game)
    return int(_envpool().make_spec(f"{game}-v5").action_space.n)


class Atari(base.VectorEnvironment):
    """Parallel environments of one game, with the same settings and different random starts."""

    def __init__(
        self,
        game: str,
        num_envs: int,
        seed: tuple[int, ...],
        *,
        is_training: bool,
        fires_after_life: bool = True,
        max_frames: int = MAX_FRAMES,
        batch_size: int | None = None,
    ):
        """Creates the environments.

        Args:
            game: the game's name, such as "Pong".
            num_envs: number of environments.
            seed: numbers that determine the seeds of all environments.
            is_training: whether rewards are clipped to [-1, 1] and a lost life ends an episode.
            fires_after_life: whether a game continues after a lost life with no-ops and FIRE, as at its start; in
                training it always does.
            max_frames: a game is truncated after this many frames.
            batch_size: number of environments that `recv` waits for; by default all of them (synchronous).
        """
        check_game(game)
        self.num_envs, self.stack_shape = num_envs, STACK_SHAPE
        self.batch_size = batch_size or num_envs
        self._pool = _make(
            game,
            num_envs,
            seed,
            max_frames,
            batch_size=self.batch_size,
            reward_clip=is_training,
            episodic_life=is_training or fires_after_life,
        )
        self._is_training = is_training
        self.spec = types.EnvironmentSpec(int(self._pool.action_space.n), (*STACK_SHAPE[1:], STACK_SHAPE[0]))
        self._was_last = np.ones(num_envs, bool)

    def reset(self) -> base.VectorStep:
        """Resets all environments and returns their first observations."""
        self._was_last[:] = True
        self._pool.async_reset()
        return self.recv()

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of these environments in envpool's threads, without waiting."""
        self._pool.send(actions.astype(np.int32), env_ids.astype(np.int32))

    def recv(self) -> base.VectorStep:
        """Waits for the next environments to finish their steps and returns these."""
        observations, rewards, terminated, truncated, info = self._pool.recv()
        env_ids = np.asarray(info["env_id"])
        # The step after the end of an episode ignores its action and returns the next start: it is not a
        # transition.
        is_first = self._was_last[env_ids]
        game_over = (info["terminated"] != 0) | truncated
        last = (terminated | truncated if self._is_training else game_over) & ~is_first
        self._was_last[env_ids] = last
        return base.VectorStep(
            env_ids,
            observations,
            is_first,
            np.where(is_first, 0.0, rewards).astype(np.float32),
            np.where(is_first, 0.0, info["reward"]).astype(np.float64),
            terminated & last,
            last,
            last & game_over,
        )

    def close(self) -> None:
        """Stops envpool's threads."""
        self._pool.close()


class Screen:
    """A game in colour, in lock-step with the only environment of an evaluation `Atari`."""

    def __init__(
        self, game: str, seed: tuple[int, ...], *, fires_after_life: bool = True, max_frames: int = MAX_FRAMES
    ):
        self._pool = _make(
            game,
            1,
            seed,
            max_frames,
            reward_clip=False,
            episodic_life=fires_after_life,
            gray_scale=False,
            stack_num=1,
            img_height=210,
            img_width=160,
        )
        self.picture = self._picture(self._pool.reset()[0])

    def step(self, action: int) -> None:
        """Takes the same action as the other environment."""
        self.picture = self._picture(self._pool.step(np.array([action], np.int32))[0])

    @staticmethod
    def _picture(observations: np.ndarray) -> np.ndarray:
        return np.moveaxis(observations[0], 0, -1).copy()  # [210, 160, 3]

    def close(self) -> None:
        """Stops envpool's threads."""
        self._pool.close()
