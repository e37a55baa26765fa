"""run_atari.py with scripted games in place of envpool's, whose frames and rewards show the actions taken.

Once curve.csv has as many rows as the file HOLD says, games stand still until that file is deleted: time to end a
run in the middle.
"""

import os
import pathlib
import sys
import time

os.environ.setdefault("NPROC", "1")
for _folder in ("", ".."):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / _folder))

import fake_vector  # noqa: E402
import numpy as np  # noqa: E402

from hyperagent_jax.environments import atari as games  # noqa: E402
from hyperagent_jax.experiment import atari  # noqa: E402
from hyperagent_jax.experiment import driver  # noqa: E402

SHAPE = (4, 36, 36)


def num_rows(table):
    """The number of rows of a csv file, 0 without one."""
    return max(0, len(table.read_text().splitlines()) - 1) if table.exists() else 0


def is_held():
    hold = pathlib.Path(os.environ.get("HOLD", "none"))
    logdir = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--logdir=")]
    try:
        return num_rows(pathlib.Path(*logdir) / "curve.csv") >= int(hold.read_text())
    except FileNotFoundError:
        return False


class Games(fake_vector.FakeVector):
    """Games of random lengths that a seed determines."""

    def __init__(self, game, num_envs, seed, batch_size=None, **settings):
        rng = np.random.default_rng(seed)
        kinds = (fake_vector.LIFE, fake_vector.OVER, fake_vector.CUT)
        lengths = rng.integers(2, 12, (num_envs, 3))
        scripts = [[(int(n), kind) for n, kind in zip(row, kinds, strict=True)] for row in lengths]
        super().__init__(scripts, SHAPE, batch_size=batch_size)

    def recv(self):
        while is_held():
            time.sleep(0.02)
        return super().recv()

    def _advance(self, env):
        first, reward, *rest = super()._advance(env)
        if not first:
            action = self.actions[env][-1]
            self._stacks[env, -1, 2, 2] = 50 * action
            reward = np.sin(reward) + 0.1 * action
        return first, reward, *rest


def use_fake_games():
    games.Atari, games.STACK_SHAPE = Games, SHAPE
    games.check_game, games.num_actions = lambda game: None, lambda game: 3


if __name__ == "__main__":
    use_fake_games()
    driver.main(atari.EXPERIMENT)
