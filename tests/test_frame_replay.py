"""Tests of the replay of frames against lists of everything that was ever shown."""

import threading

import fake_vector
import numpy as np
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax.replay import block_sums
from hyperagent_jax.replay import frames as frames_lib
from hyperagent_jax.replay import sampling

SHAPE = (4, 6, 5)
GAMMA = 0.5
SCRIPTS = [
    [(7, fake_vector.LIFE), (1, fake_vector.OVER), (12, fake_vector.CUT), (2, fake_vector.OVER)],
    [(3, fake_vector.OVER)],
    [(40, fake_vector.LIFE), (5, fake_vector.LIFE), (9, fake_vector.OVER)],
]


def make_replay(capacity=60, num_envs=3, n_step=3, **rule):
    return frames_lib.FrameReplay(
        frames_lib.Settings(capacity, num_envs, SHAPE, n_step, GAMMA, 2, (3, 2), sampling.Rule(**rule))
    )


def as_rows(step, actions):
    """What `add` takes; every field tells environment and frame: the frame's number is in its pixels."""
    numbers = step.observations[:, -1, 1, 0] + 251 * step.observations[:, -1, 0, 1].astype(int)
    ids = 1000 * (step.env_ids + 1) + numbers
    priors, z = ids[:, None, None] + np.arange(6).reshape(3, 2), np.stack([ids, -ids], axis=-1)
    return (step, actions, priors, z), numbers


class Model:
    """Everything that was shown, and all transitions in it by the definition of n-step returns."""

    def __init__(self, num_envs, n_step):
        self.n_step = n_step
        self.shown = [[] for _ in range(num_envs)]  # (stack, is_first, reward, terminated, last, action)

    def add(self, step, actions):
        for i, env in enumerate(step.env_ids):
            self.shown[env].append(
                (
                    step.observations[i].copy(),
                    *(x[i] for x in (step.is_first, step.rewards, step.terminated, step.last, actions)),
                )
            )

    def transitions(self):
        """Maps (env, row) to (stack, action, return, discount, stack at the end)."""
        found = {}
        for env, shown in enumerate(self.shown):
            for t in range(len(shown)):
                if shown[t][4]:  # nothing begins at an end
                    continue
                total = 0.0
                for k in range(1, self.n_step + 1):
                    if t + k >= len(shown):
                        break
                    stack, _, reward, terminated, last, _ = shown[t + k]
                    total += GAMMA ** (k - 1) * reward
                    if last or k == self.n_step:
                        discount = 0.0 if terminated else GAMMA**k
                        found[env, t] = (shown[t][0], shown[t][5], total, discount, stack, t + k)
                        break
        return found


def run(replay, num_steps, scripts=SCRIPTS, model=None, batch_size=None, seed=0):
    environment = fake_vector.FakeVector(scripts, SHAPE, batch_size=batch_size)
    rng = np.random.default_rng(seed)
    model = model or Model(len(scripts), replay.settings.n_step)
    step = environment.reset()
    for _ in range(num_steps):
        actions = rng.integers(0, 3, len(step.env_ids))
        rows, _ = as_rows(step, actions)
        replay.add(*rows)
        model.add(step, actions)
        yield model
        environment.send(actions, step.env_ids)
        step = environment.recv()


def check(batch, expected):
    """Compares all fields of a batch with the model; returns the (env, row) of its transitions."""
    t = batch.transitions
    keys = []
    for i in range(len(t.a_tm1)):
        number = int(t.z_t[i, 0]) % 1000
        env = int(t.z_t[i, 0]) // 1000 - 1
        stack, action, total, discount, end, end_row = expected[env, number]
        np.testing.assert_array_equal(t.o_tm1[i], stack)
        np.testing.assert_array_equal(t.o_t[i], end)
        assert t.a_tm1[i] == action
        np.testing.assert_allclose(t.r_t[i], total, rtol=1e-6)
        assert t.discount_t[i] == np.float32(discount)
        np.testing.assert_array_equal(t.z_t[i], [1000 * (env + 1) + number, -1000 * (env + 1) - number])
        base = np.arange(6).reshape(3, 2) + 1000 * (env + 1)
        np.testing.assert_array_equal(batch.prior_tm1[i], base + number)
        np.testing.assert_array_equal(batch.prior_t[i], base + end_row)
        keys.append((env, number))
    return keys


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("priority_fraction", [0.0, 0.5])
def test_every_field_over_several_wrap_arounds(n_step, priority_fraction):
    replay = make_replay(60, n_step=n_step, priority_fraction=priority_fraction, recent_fraction=0.25)
    rng = np.random.default_rng(0)
    drawn = set()
    for count, model in enumerate(run(replay, 200)):
        if count < 10 or count % 10:
            continue
        expected = model.transitions()
        assert replay.added == len(expected)
        batch, numbers = replay.sample(rng.integers(0, 2**32, 200, dtype=np.uint32))
        keys = check(batch, expected)
        drawn.update(keys)
        assert batch.replay_size == replay.size
        if priority_fraction:
            replay.update(numbers, np.arange(200.0))
        # Those that can be drawn are recent and make up the size; 60 or a few less, for rows without transitions.
        uniform = set(keys[-50:])
        assert len(uniform) > 10 and max(row for _, row in keys) >= count - n_step
        assert replay.size <= 60
        if count > 60:
            assert replay.size >= 60 * 3 / 5  # environment 1 rests every fourth row
            assert min(row for _, row in keys) >= count - 30
    assert {env for env, _ in drawn} == {0, 1, 2}


def test_all_that_is_held_is_drawn_and_uniformly():
    replay = make_replay(24, n_step=3)
    expected = list(run(replay, 80))[-1].transitions()
    batch, _ = replay.sample(np.random.default_rng(0).integers(0, 2**32, 24_000, dtype=np.uint32))
    small = batch._replace(
        transitions=type(batch.transitions)(*(x[:500] for x in batch.transitions)),
        prior_tm1=batch.prior_tm1[:500],
        prior_t=batch.prior_t[:500],
    )
    assert len(set(check(small, expected))) == replay.size
    counts = np.unique(batch.transitions.z_t[:, 0], return_counts=True)[1]
    assert len(counts) == replay.size
    chi_square = np.sum((counts - 24_000 / replay.size) ** 2) / (24_000 / replay.size)
    assert chi_square < 60  # 0.9999 quantile with 23 degrees of freedom: 55


def test_environments_of_their_own_pace():
    """Asynchronous environments: some show twice as many rows as others, and rows never mix."""
    replay = make_replay(45, n_step=2)
    rng = np.random.default_rng(0)
    for count, model in enumerate(run(replay, 300, batch_size=2)):
        if count > 20 and count % 20 == 0:
            check(replay.sample(rng.integers(0, 2**32, 100, dtype=np.uint32))[0], model.transitions())
    assert replay.size > 20


def test_known_numbers():
    """One life of 4 steps, then the end: rewards 2, 3, 4, 5 at frames 1 to 4, by hand."""
    replay = make_replay(8, num_envs=1, n_step=3)
    list(run(replay, 5, [[(4, fake_vector.OVER)]]))
    batch, _ = replay.sample(np.arange(4, dtype=np.uint32))
    np.testing.assert_array_equal(batch.transitions.z_t[:, 0], [1000, 1001, 1002, 1003])
    np.testing.assert_array_equal(batch.transitions.r_t, [2 + 3 / 2 + 4 / 4, 3 + 4 / 2 + 5 / 4, 4 + 5 / 2, 5])
    np.testing.assert_array_equal(batch.transitions.discount_t, [1 / 8, 0, 0, 0])
    # Stacks of frame numbers; the first frame fills what came before it.
    np.testing.assert_array_equal(
        batch.transitions.o_tm1[:, :, 2, 2], [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3]]
    )
    np.testing.assert_array_equal(batch.transitions.o_t[0, :, 2, 2], [0, 1, 2, 3])


def test_truncation_bootstraps_and_the_step_after_is_no_transition():
    replay = make_replay(12, num_envs=1, n_step=3)
    list(run(replay, 6, [[(2, fake_vector.CUT), (9, fake_vector.OVER)]]))
    # Frames 0 1 2 | 3 4 5: transitions begin at 0 and 1 and, three steps later at last, at none of 2 and 3.
    batch, _ = replay.sample(np.arange(replay.size, dtype=np.uint32))
    np.testing.assert_array_equal(batch.transitions.z_t[:, 0], [1000, 1001])
    np.testing.assert_array_equal(batch.transitions.discount_t, [1 / 4, 1 / 2])
    np.testing.assert_array_equal(batch.transitions.o_t[:, -1, 2, 2], [2, 2])
    np.testing.assert_array_equal(batch.prior_t[:, 0, 0], [1002, 1002])


def test_an_unknown_kind_of_stack_is_refused():
    replay = make_replay(12, num_envs=1)
    list(run(replay, 1, [[(9, fake_vector.OVER)]]))
    rows, _ = as_rows(fake_vector.FakeVector([[(9, fake_vector.OVER)]], SHAPE).reset(), np.zeros(1, int))
    rows[0].observations[0, 0] = 77
    with pytest.raises(ValueError, match="continues the previous one or repeats one frame"):
        replay.add(*rows)


@pytest.mark.parametrize("priority_fraction", [0.0, 1.0])
def test_prefetched_batches_are_those_of_sample(priority_fraction):
    one, other = (make_replay(priority_fraction=priority_fraction) for _ in range(2))
    runs = zip(run(one, 120), run(other, 120), strict=True)
    for count, _ in enumerate(runs):
        if count < 10:
            continue
        bits = [frames_lib.FrameReplay.draw(5, 2 * count + i, 16) for i in range(2)]
        for x in bits:
            one.prefetch(x)
        batches = [(one.take(), other.sample(x)) for x in bits]
        for (ahead, numbers), (now, expected) in batches:
            np.testing.assert_array_equal(numbers, expected)
            for a, b in zip(ahead.transitions, now.transitions, strict=True):
                np.testing.assert_array_equal(a, b)
            one.update(numbers, np.arange(16.0))
            other.update(expected, np.arange(16.0))
    one.close()


def test_rows_wait_for_a_batch_that_is_being_gathered(monkeypatch):
    replay = make_replay(30, num_envs=1)
    steps = run(replay, 60, [[(1000, fake_vector.OVER)]])
    for _ in range(40):
        model = next(steps)
    expected = model.transitions()
    begin, gather = threading.Event(), replay._gather

    def slow_gather(numbers):
        begin.wait(0.3)
        return gather(numbers)

    monkeypatch.setattr(replay, "_gather", slow_gather)
    replay.prefetch(np.arange(30, dtype=np.uint32))
    for _ in range(15):  # overwrites half of what was drawn
        next(steps)
    check(replay.take()[0], expected)
    replay.close()


def test_priorities_decide_what_is_drawn():
    replay = make_replay(30, num_envs=1, priority_fraction=1.0)
    steps = run(replay, 100, [[(1000, fake_vector.OVER)]])
    for _ in range(50):
        next(steps)
    oldest = replay.added - replay.size
    errors = np.arange(1.0, 31.0)
    replay.update(np.arange(oldest, replay.added), errors**2)
    batch, _ = replay.sample(np.random.default_rng(0).integers(0, 2**32, 46_500, dtype=np.uint32))
    numbers, counts = np.unique(batch.transitions.z_t[:, 0], return_counts=True)
    np.testing.assert_array_equal(numbers, 1000 + np.arange(oldest, oldest + 30))
    np.testing.assert_allclose(counts, 100 * errors, atol=2)
    # What is given up is not drawn any more, and late news about it do not go to what has its place now.
    for _ in range(10):
        next(steps)
    newest = replay._newest_priority[0]
    replay._weights.weights[:] = np.where(replay._weights.weights > 0, 1.0, 0.0)
    replay._weights.refresh()
    replay.update(np.arange(oldest, oldest + 10), np.full(10, newest**2))
    batch, _ = replay.sample(np.random.default_rng(1).integers(0, 2**32, 30_000, dtype=np.uint32))
    numbers, counts = np.unique(batch.transitions.z_t[:, 0], return_counts=True)
    np.testing.assert_array_equal(numbers, 1000 + np.arange(oldest + 10, oldest + 40))
    np.testing.assert_allclose(counts, 1_000, atol=2)


def test_importance_weights_are_those_of_the_choice():
    replay = make_replay(3, num_envs=1, n_step=1, priority_fraction=1.0, importance_beta=0.4)
    steps = run(replay, 20, [[(1000, fake_vector.OVER)]])
    for _ in range(8):
        next(steps)
    numbers = np.arange(replay.added - 3, replay.added)
    replay.update(numbers, np.array([1.0, 4.0, 16.0]))  # errors 1, 2, 4: drawn with 1/7, 2/7, 4/7
    replay.prefetch(np.full(7, 2**31, np.uint32))
    replay.update(numbers, np.full(3, 9.0))  # too late for the batch that was chosen
    batch, drawn = replay.take()
    expected = {numbers[0]: 1.0, numbers[1]: 0.757858, numbers[2]: 0.574349}
    np.testing.assert_allclose(batch.weights, [expected[number] for number in drawn], rtol=1e-5)
    assert batch.weights.dtype == np.float32 and set(drawn) == set(numbers)
    np.testing.assert_array_equal(replay.sample(np.arange(7, dtype=np.uint32))[0].weights, np.ones(7))
    assert make_replay(priority_fraction=1.0).settings.rule.importance_beta == 0
    replay.close()


def test_saved_and_restored_is_the_same(tmp_path):
    for priority_fraction in (0.0, 0.5):
        for num_steps in (12, 130):
            replay = make_replay(priority_fraction=priority_fraction)
            list(run(replay, num_steps))
            replay.update(np.arange(replay.added - 5, replay.added), np.arange(5.0))
            other = make_replay(priority_fraction=priority_fraction)
            checkpoint.save(tmp_path / "replay.npz", replay.state(), {})
            checkpoint.load(tmp_path / "replay.npz", other.like())
            other.refresh()
            for _ in zip(run(replay, 10, seed=3), run(other, 10, seed=3), strict=True):
                batches = [r.sample(np.arange(40, dtype=np.uint32))[0].transitions for r in (replay, other)]
                for x, y in zip(*batches, strict=True):
                    np.testing.assert_array_equal(x, y)


def test_memory_is_predicted():
    settings = frames_lib.Settings(500_000, 4, (4, 84, 84), 5, 0.99, 4, (18, 5))
    replay = make_replay(60)
    assert replay.settings.num_bytes() == sum(array.nbytes for array in replay._arrays.values())
    # Frames are 3.53 GB, the coefficients of the prior for 18 actions 0.18 GB, the rest is small.
    assert 3.528e9 + 0.18e9 < settings.num_bytes() < 3.528e9 + 0.18e9 + 0.03e9


def test_bad_settings():
    with pytest.raises(ValueError, match="n_step must be between 1 and 255, got 0"):
        make_replay(n_step=0)
    with pytest.raises(ValueError, match="replay_capacity=2"):
        make_replay(2)
    with pytest.raises(ValueError, match="the replay is empty"):
        make_replay().sample(np.zeros(3, np.uint32))


def test_block_sums():
    sums = block_sums.BlockSums(3_000)
    rng = np.random.default_rng(0)
    positions = rng.permutation(3_000)[:2_000]
    weights = rng.random(2_000).astype(np.float32)
    sums.set(positions, weights)
    sums.set(np.array([7, 7, 2_999]), np.array([3.0, 5.0, 2.0]))
    expected = np.zeros(3_000)
    expected[positions] = weights
    expected[[7, 2_999]] = 5.0, 2.0
    quantiles = (np.arange(30_000) + 0.5) / 30_000
    counts = np.bincount(sums.find(quantiles), minlength=3_000)
    np.testing.assert_allclose(counts, expected / expected.sum() * 30_000, atol=1.01)
    np.testing.assert_array_equal(sums.find(np.array([0.0, 1 - 1e-16])), [np.flatnonzero(expected)[0], 2_999])
