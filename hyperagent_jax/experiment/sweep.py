"""Plans sweeps of any experiment: all combinations of agents, problems, seeds and settings, checked and sorted."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any

from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import fingerprint as fingerprint_lib

Grid = Mapping[str, Any]
# More runs would be too many for one table and one queue.
MOST_RUNS = 1_000_000


def read(text: str) -> list[Grid]:
    """Reads grids from a JSON object, a list of objects, or the path of a file with one of these."""
    source = "--grid"
    if not text.lstrip().startswith(("{", "[")):
        source = f"--grid={text}"
        try:
            text = pathlib.Path(text).read_text()
        except (OSError, ValueError) as error:
            raise errors.UserError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from error

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not a number")

    def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twins[0]!r} appears twice")
        return dict(pairs)

    try:
        grids = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_twins)
    except (ValueError, RecursionError) as error:
        raise errors.UserError(f"{source} is not valid JSON: {error}") from error
    grids = grids if isinstance(grids, list) else [grids]
    if not grids or not all(isinstance(grid, dict) for grid in grids):
        raise errors.UserError(
            f"{source} must be a JSON object that maps names of settings to lists of values, or a list of such "
            "objects"
        )
    return grids


def _values(name: str, annotation: Any, entry: Any) -> list[Any]:
    """Returns the distinct values of an entry of a grid; a single value stands for a list of one."""
    # For a setting that is itself a list, a list of numbers is one value.
    is_one = not isinstance(entry, list) or (
        config_lib.is_list(annotation) and entry and not any(isinstance(x, list) for x in entry)
    )
    values = [config_lib.from_json(name, annotation, x) for x in ([entry] if is_one else entry)]
    if not values:
        raise errors.UserError(f"{name} has no values: its list in the grid is empty")
    return list(dict.fromkeys(values))


class _Space:
    """The keys that grids of an experiment may have, with their types and defaults."""

    def __init__(self, experiment: base.Experiment):
        self.experiment = experiment
        self.protocol = config_lib.settings_of(experiment.protocol_class)
        problem = self.protocol.pop(experiment.problem)
        self.fixed = {"agent": "hyperagent", experiment.problem: problem.default, "seed": 0}
        self.options = config_lib.settings_of(experiment.options_class)
        self.agents = {name: config_lib.settings_of(config) for name, config in experiment.configs().items()}
        self._of = {name: {**self.protocol, **self.options, **own} for name, own in self.agents.items()}
        self._defaults: dict[tuple[str, Any], dict[str, config_lib.Setting]] = {}

    def of(self, agent: str) -> dict[str, config_lib.Setting]:
        """Returns the settings of an agent's runs, besides agent, problem and seed."""
        return self._of[agent]

    def values(self, grid: Grid) -> dict[str, list[Any]]:
        """Checks a grid and returns the values of its keys, seeds last because they share a compiled program."""
        problem = self.experiment.problem
        grid = {**grid, **{name: value for name, value in self.fixed.items() if name not in grid}}
        names = _values("agent", str, grid["agent"])
        for name in names:
            self.experiment.require_agent(name, self.agents)
        every = {key: setting.type for name in names for key, setting in self.of(name).items()}
        kinds = {**{name: type(value) for name, value in self.fixed.items()}, **every}
        if unknown := [key for key in grid if key not in kinds]:
            raise errors.UserError(
                f"unknown setting {unknown[0]!r} in the grid for {self.experiment.name} with {', '.join(names)}; "
                f"choose from {problem}, {', '.join(every)}"
            )
        values = {key: _values(key, kinds[key], entry) for key, entry in grid.items()}
        for seed in values["seed"]:
            if not 0 <= seed <= types.MAX_SEED:
                raise errors.UserError(f"seed must be between 0 and {types.MAX_SEED}, got {seed}")
        with errors.settings_are_the_users():
            problems = [self.experiment.problems(value) for value in values[problem]]
        values[problem] = list(dict.fromkeys(itertools.chain(*problems)))
        values["seed"] = values.pop("seed")
        return values

    def task(self, chosen: dict[str, Any], settings: Sequence[str], seed: int, logdir: str) -> base.Task:
        """Makes the task of one combination and seed; rejects values that are out of range."""
        experiment, agent, own = self.experiment, chosen["agent"], self.of(chosen["agent"])

        def pick(known: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in chosen.items() if key in known}

        with errors.settings_are_the_users():
            options = experiment.options_class(**pick(self.options))
            problem = {experiment.problem: chosen[experiment.problem]}
            protocol = experiment.resolve(experiment.protocol_class(**problem, **pick(self.protocol)))
            configs = experiment.configs(options)
            experiment.require_agent(agent, configs)
            preset = configs[agent]
            config = experiment.capped(preset(**pick(self.agents[agent])), protocol)
        if (agent, options) not in self._defaults:
            self._defaults[agent, options] = {**own, **config_lib.settings_of(preset)}
        defaults = self._defaults[agent, options]
        texts = {
            key: config_lib.as_text(chosen.get(key, defaults[key].default)) if key in own else ""
            for key in settings
        }
        columns = (("agent", agent), (experiment.problem, str(chosen[experiment.problem])), *texts.items())
        return base.Task(experiment.name, agent, config, protocol, (seed,), options, columns, logdir, is_cell=True)


def plan(experiment: base.Experiment, grids: Sequence[Grid], logdir: str) -> base.Plan:
    """Checks grids and plans their runs: smaller problems first, and the seeds of a cell one after the other.

    A grid maps agent, problem, seed, and settings of the protocol, the options and the agents to a value or a list
    of values. Keys that are missing from some of the grids have their defaults there.
    """
    space = _Space(experiment)
    values = [space.values(grid) for grid in grids]
    num_combinations = sum(math.prod(map(len, own.values())) for own in values)
    if num_combinations > MOST_RUNS:
        raise errors.UserError(
            f"the grid has {num_combinations:,} combinations, but a sweep is limited to {MOST_RUNS:,}: give fewer "
            "values, or split it over several --logdir"
        )
    keys = dict.fromkeys(key for grid in grids for key in grid)
    settings = tuple(key for key in keys if key not in space.fixed)
    chosen_cells = [
        (dict(zip(own, chosen, strict=False)), own["seed"])
        for own in values
        for chosen in itertools.product(*(list(own.values())[:-1]))
    ]
    if isinstance(space.fixed[experiment.problem], int):
        chosen_cells.sort(key=lambda cell: cell[0][experiment.problem])
    tasks: dict[Any, base.Task] = {}
    for chosen, seeds in chosen_cells:
        first = space.task(chosen, settings, seeds[0], logdir)
        for seed in seeds:
            if (key := (first.columns, seed)) not in tasks:
                tasks[key] = first if seed == seeds[0] else dataclasses.replace(first, seeds=(seed,))
    configs = {agent: experiment.configs()[agent]() for agent in dict.fromkeys(x.agent for x in tasks.values())}
    cells = [dict(columns) for columns in dict.fromkeys(columns for columns, _ in tasks)]
    varied = tuple(name for name in settings if len({cell[name] for cell in cells}) > 1)
    fixed = "".join(f", {key}={cells[0][key]}" for key in settings if key not in varied and cells[0][key])
    lacking = [
        f"{name} has no {', '.join(absent)}"
        for name in configs
        if (absent := [key for key in settings if key not in space.of(name)])
    ]
    remark = (
        f"{'; '.join(lacking)}: left blank there, and duplicate runs are run once "
        f"({num_combinations} combinations give {len(tasks)} runs)"
    )
    identity = {
        "experiment": "sweep",
        "grid_keys": sorted(settings),
        "protocol": {name: setting.default for name, setting in space.protocol.items() if name not in keys},
        "configs": {name: dataclasses.asdict(config) for name, config in configs.items()},
    }
    if experiment.name != "deepsea":  # older versions had no other experiment
        identity["of"] = experiment.name
    return base.Plan(
        experiment,
        tuple(tasks.values()),
        logdir,
        fingerprint_lib.make(identity, protocol=next(iter(tasks.values())).protocol, configs=configs),
        key_fields=(*space.fixed, *settings),
        shown=varied,
        notes={"grid": grids[0] if len(grids) == 1 else list(grids)},
        header=f"{len(tasks)} run(s) in {len(cells)} cell(s){fixed}",
        remark=remark if lacking else "",
    )
