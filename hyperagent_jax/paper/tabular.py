"""The paper's tabular table and its figure of how uncertainty propagates, from the rows of run_tabular.py."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
import types
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.tabular import plots
from hyperagent_jax.experiment import base
from hyperagent_jax.paper import figure

Tables = Mapping[str, list[dict[str, str]]]
# A value of the picture below this share of the largest counts as none.
_VISIBLE = 0.05


@dataclasses.dataclass(frozen=True)
class Study:
    """A figure of a study of run_tabular.py.

    Attributes:
        name: name of the command.
        title: heading.
        place: where it is in the paper.
        says: what the paper says, in one sentence.
        study: the command of run_tabular.py, and its folder in results/tabular.
        tables: the csv files it needs.
        draw: draws them; called as `draw(file, tables, config)`.
        describe: returns what came out, from the tables.
    """

    name: str
    title: str
    place: str
    says: str
    study: str
    tables: Sequence[str]
    draw: Callable[[Any, Any, Any], None]
    describe: Callable[[Tables], str]

    def open(self, root: pathlib.Path) -> "Found":
        """Looks for the study's tables in the folders of results."""
        return Found(self, root)


class Found:
    """The tables of a study."""

    def __init__(self, study: Study, root: pathlib.Path):
        """Reads the tables in `root`."""
        self.study = study
        self.root = root
        self.folder = f"tabular/{study.study}"
        self.tables = {name: results.read_csv(root / self.folder / f"{name}.csv") for name in study.tables}
        self.is_there = all(self.tables.values())

    def state(self) -> figure.State:
        """Returns which runs exist and which are missing."""
        rows = sum(map(len, self.tables.values()))
        missing = [] if self.is_there else [f"the study {self.study.study}"]
        return figure.State(rows, max(rows, 1), missing, [self.folder] if self.is_there else [])

    def pictures(self) -> Sequence[figure.Picture]:
        """Returns what there is to draw."""
        if not self.is_there:
            return []
        config = sources_lib.part(sources_lib.identity(self.root / self.folder), "config")
        settings = types.SimpleNamespace(**config)
        return [figure.Picture("", self.study.title, lambda file, _: self.study.draw(file, self.tables, settings))]

    def finding(self) -> str:
        """Returns what came out; blank without rows."""
        return self.study.describe(self.tables) if self.is_there else ""

    def plan(self) -> base.Plan | None:
        """Returns None, as there is nothing to run; a study that is missing has a script of its own."""
        if self.is_there:
            return None
        raise errors.UserError(
            f"run the study with python experiments/run_tabular.py {self.study.study} --logdir={self.root}/tabular"
        )


def _mean(rows: Sequence[Mapping[str, str]], column: str) -> float:
    return sum(float(row[column]) for row in rows) / len(rows)


def regret(tables: Tables) -> str:
    """Returns mean regrets by agent and environment, and how the cost of a step grows."""
    rows, costs = tables["results"], tables["bench"]
    agents = list(dict.fromkeys(row["agent"] for row in rows))
    parts = []
    for place in dict.fromkeys(row["environment"] for row in rows):
        regrets = {
            agent: _mean(own, "regret")
            for agent in agents
            if (own := [row for row in rows if row["agent"] == agent and row["environment"] == place])
        }
        ordered = sorted(regrets.items(), key=lambda item: item[1])
        parts.append(f"on {place} {', '.join(f'{agent} {value:,.0f}' for agent, value in ordered)}")
    growth = []
    for agent in dict.fromkeys(row["agent"] for row in costs):
        points = sorted((int(row["episodes"]), float(row["step_us"])) for row in costs if row["agent"] == agent)
        growth.append((points[-1][1] / points[0][1], agent))
    first, last = (pick(int(row["episodes"]) for row in costs) for pick in (min, max))
    text = ", ".join(f"{agent} {ratio:,.1f}" for ratio, agent in sorted(growth))
    return (
        f"Mean regret: {'; '.join(parts)}. A step after {last:,} episodes costs this many times one after "
        f"{first:,}: {text}."
    )


def propagation(tables: Tables) -> str:
    """Returns how many pairs of state and action are uncertain after each iteration."""
    rows = tables["results"]
    largest = max(float(row["standard_deviation"]) for row in rows)
    counts: dict[int, int] = {}
    for row in rows:
        is_seen = float(row["standard_deviation"]) > _VISIBLE * largest
        counts[int(row["iteration"])] = counts.get(int(row["iteration"]), 0) + is_seen
    pairs = len(rows) // len(counts)
    text = ", ".join(str(counts[i]) for i in sorted(counts))
    return (
        f"Of {pairs} pairs of state and action, {text} have a standard deviation above {_VISIBLE:.0%} of the "
        f"largest after iterations {min(counts)} to {max(counts)}."
    )


FIGURES = (
    Study(
        name="tabular_table",
        title="Regret and cost per step",
        place="Table 1",
        says="HyperAgent has the regret of PSRL and RLSVI, H^2 sqrt(SAK), and a cost per step that grows with log "
        "K, where that of LMC-LSVI grows with K.",
        study="regret",
        tables=("results", "curve", "bench"),
        draw=plots.regret,
        describe=regret,
    ),
    Study(
        name="propagation",
        title="How uncertainty propagates",
        place="Appendix D",
        says="Uncertainty about (4, down), seen once, is propagated to earlier stages by the Bellman iteration.",
        study="propagation",
        tables=("results",),
        draw=plots.propagation,
        describe=propagation,
    ),
)
