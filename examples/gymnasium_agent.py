"""Any agent of the library on a gymnasium environment: training, then episodes in which it only acts.

Example: python examples/gymnasium_agent.py --env=CartPole-v1 --agent=hyperagent --steps=20000
"""

from absl import app
from absl import flags
import jax

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax.environments import gymnasium_adapter
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import loop


def main(env: str = "CartPole-v1", agent: str = "hyperagent", steps: int = 20_000, seed: int = 0) -> float:
    """Trains for `steps` steps, rounded up to tens, and returns the mean of ten episodes played after that."""
    make_environment = lambda: gymnasium_adapter.GymnasiumEnvironment(env, seed)
    config = agents.CONFIGS[agent](replay_capacity=100_000)
    made = agents.make_agent(agent, config, make_environment().spec)
    train_key, play_key = jax.random.split(jax.random.key(seed))
    run = loop.Loop(loop.make_program(made), make_environment, train_key)
    for _ in range(10):
        metrics = run.run(-(-steps // 10))
        average = float(metrics.returns) / metrics.episodes if metrics.episodes else float("nan")
        print(f"{run.agent.steps:>8,} steps: {metrics.episodes:>5} episodes, mean return {average:.1f}")
    variables = run.agent.variables()  # a pytree with all that acting needs, to keep or to save
    returns = evaluate.make_player(made)(variables, make_environment(), 10, play_key)
    print(f"without learning: mean return {returns.mean():.1f} over {len(returns)} episodes")
    return float(returns.mean())


if __name__ == "__main__":
    ENV = flags.DEFINE_string("env", "CartPole-v1", "Name of a gymnasium environment with discrete actions.")
    AGENT = flags.DEFINE_enum("agent", "hyperagent", list(agents.CONFIGS), "The agent.")
    STEPS = flags.DEFINE_integer("steps", 20_000, "Number of steps.", lower_bound=10)
    SEED = flags.DEFINE_integer("seed", 0, "Seed of agent and environment.", lower_bound=0)

    def run_with_flags(_):
        try:
            main(ENV.value, AGENT.value, STEPS.value, SEED.value)
        except errors.UserError as error:
            raise SystemExit(f"error: {error}") from error

    app.run(run_with_flags)
