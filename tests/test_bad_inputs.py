"""Flags that once ended in a traceback, or in no answer at all: refused in one line, or accepted, at once.

Tabular experiments, grids and files are in test_bad_settings.py and test_file_properties.py.
"""

from absl import flags
import pytest

from hyperagent_jax import errors
from hyperagent_jax import host_memory
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import driver

MEMORY = r"the run needs [\d.]+ GB of memory, but 8.00 GB are free: lower "
STATE = f"{MEMORY}--replay_capacity or the sizes of the network or the problem$"
# Script, flags, and the line that refuses them; blank if they are legal.
INPUTS = [
    ("deepsea", "--hidden_sizes=1000000000", STATE),
    ("deepsea", "--num_ois=1000000000", f"{MEMORY}--num_ois or --index_dim$"),
    ("deepsea", "--index_dim=1000000000", STATE),
    ("deepsea", "--batch_size=1000000000", f"{MEMORY}--batch_size or --hidden_sizes$"),
    ("deepsea", "--eval_episodes=1000000000", f"{MEMORY}--eval_episodes or --hidden_sizes$"),
    ("deepsea", "--updates_per_step=1000000000", f"{MEMORY}--updates_per_step or --batch_size$"),
    ("deepsea", "--num_indices=1000000000 --loss=sampled", f"{MEMORY}--batch_size, --num_indices or --index_dim$"),
    ("deepsea", "--runner=loop --index_dim=1000000000", STATE),
    ("deepsea", "--size=100000", STATE),
    ("deepsea", "--size=1000000000", "--max_episodes must be at most 2 at this size"),
    ("deepsea", "--max_episodes=1000000000000", "--max_episodes must be at most 107374182 at this size"),
    ("deepsea", "--replay_capacity=1000000000000000000", ""),
    ("deepsea", "--eval_every=1000000000000000", ""),
    ("deepsea", "--perturbation_distribution=coordinate", ""),
    ("deepsea", "--recent_fraction=1", ""),
    ("deepsea", "--num_workers=1000000", ""),
    ("deepsea", "--checkpoint_seconds=inf", ""),
    ("deepsea", "--target_period=1000000000000", "--target_period must be between 1 and 2147483647, got 10+$"),
    ("deepsea", "--min_replay=1000000000000", "--min_replay must be between 0 and 2147483647, got 10+$"),
    ("deepsea", "--n_step=1000000000", "--n_step must be between 1 and 1000, got 1000000000$"),
    (
        "deepsea",
        "--agent=ddqn --epsilon_updates=1000000000000",
        "--epsilon_updates must be between 1 and 2147",
    ),
    ("deepsea", "--agent=noisy_net --num_atoms=1000000000", "--num_atoms must be between 1 and 10000, got 10+$"),
    ("deepsea", "--agent=bbf --num_atoms=1000000000", "--num_atoms must be between 3 and 10000, got 10+$"),
    ("deepsea", "--agent=bbf --n_step_end=1000000000", "--n_step_end must be between 1 and 1000, got 10+$"),
    ("deepsea", "--agent=bbf --reset_period=1000000000000", "--reset_period must be between 0 and 2147483647"),
    ("deepsea", "--agent=bbf --augmentation_pad=1000000000", "--augmentation_pad must be between 0 and 1000, got"),
    ("deepsea", "--learning_rate=inf", "--learning_rate must be a finite number, got inf"),
    ("deepsea", "--sigma=inf", "--sigma must be a finite number, got inf"),
    ("deepsea", "--prior_scale=inf", "--prior_scale must be a finite number, got inf"),
    ("deepsea", "--prior_scale=1e39", "--prior_scale must be a finite number of 32 bits, got 1e\\+39"),
    ("deepsea", "--discount=nan", "--discount must be between 0 and 1, got nan"),
    ("deepsea", "--num_seeds=1000000000", "--num_seeds=1000000000: 1000000000 is not an integer in the range"),
    ("deepsea", "--hidden_sizes=", r"--hidden_sizes must be one or more positive widths, got \(\)"),
    ("atari", "--game=Pong --recent_fraction=0.5", ""),
    ("atari", "--game=Pong --checkpoint_seconds=inf", ""),
    ("atari", "--game=Pong --steps=1000000000000000", ""),
    ("atari", "--game=Pong --hidden_sizes=1000000000", STATE),
    ("atari", "--game=Pong --max_frames=10000000000", r"--max_frames must be less than 2\*\*31, got 10+$"),
    ("jax", "--env=explore/chain_20 --eval_max_steps=10000000000", r"--eval_max_steps must be less than 2\*\*31"),
    (
        "atari",
        "--game=Pong --process_id=1",
        "--coordinator_address, num_processes and process_id need distributed",
    ),
    ("atari", "--game=Pong --num_envs=1000000000", "a replay of 1000000000 environments needs at least as many"),
    ("atari", "--game=Pong --replay_capacity=1000000000000", STATE),
    (
        "deepsea",
        "--agent=bootdqn --index_dim=1000000000",
        r"not enough memory \(\w*MemoryError: Unable to allocate .*: lower --index_dim, --replay",
    ),
    ("bsuite", "--bsuite_id=catch/0 --replay_capacity=1000000000000000000", ""),
    ("bsuite", "--bsuite_id=catch/0 --num_ois=1000000000", f"{MEMORY}--num_ois or --index_dim$"),
]
SCRIPTS = ("deepsea", "atari", "bsuite", "jax")


@pytest.fixture(scope="module")
def flags_of():
    """The flags of scripts, each with a set of its own."""
    values = {}
    with pytest.MonkeyPatch.context() as patch:
        originals = {name: getattr(flags, name) for name in dir(flags) if name.startswith("DEFINE_")}
        for script in SCRIPTS:
            own = values[script] = flags.FlagValues()
            for name, define in originals.items():
                patch.setattr(
                    flags, name, lambda *a, _f=define, _own=own, **k: _f(*a, **{**k, "flag_values": _own})
                )
            patch.setattr(driver.config_lib.define_flags, "__defaults__", (own,))
            patch.setattr(
                driver.config_lib,
                "_DEFINE",
                {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float},
            )
            patch.setattr(flags, "adopt_module_key_flags", lambda module: None)
            driver.define_flags(base.get(script))
    return values


@pytest.mark.parametrize("script, given, message", INPUTS)
def test_settings_of_scripts(script, given, message, flags_of, monkeypatch):
    values = flags_of[script]
    values.unparse_flags()
    for name in values:
        values[name].unparse()
    for module in (driver, flags, cli.flags):
        monkeypatch.setattr(module, "FLAGS", values)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 8 * 10**9)

    def check():
        values(["script", *given.split()])
        plan = driver.plan_from_flags(base.get(script))
        driver._check(plan)
        assert min(cli.num_workers(), len(plan.tasks)) == 1

    if not message:
        check()
        return
    with pytest.raises((errors.UserError, flags.Error), match=message) as refused:
        check()
    assert len(str(refused.value).splitlines()) == 1
