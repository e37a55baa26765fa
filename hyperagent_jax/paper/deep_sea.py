"""The paper's figures on DeepSea: episodes to learn against the size, a line per agent or setting."""

from collections.abc import Sequence
import functools

from hyperagent_jax.analysis.deep_sea import plots
from hyperagent_jax.paper import figure
from hyperagent_jax.paper import findings
from hyperagent_jax.paper.figure import Line

_PAPER, _BASELINES, _ENSEMBLE_16 = "deep_sea/law/paper", "deep_sea/law/baselines", "deep_sea/law/ensemble_16"
_SYSTEMS = "deep_sea/paper_systems"
# The sampled loss with the default settings is a line of several figures.
_SAMPLED = "paper/dependent_target"


def _pictures(found: figure.Found) -> Sequence[figure.Picture]:
    lines = findings.groups(found)
    draw = functools.partial(plots.episodes_to_learn, groups=lines)
    return [figure.Picture("", found.figure.title, draw)] if lines else []


_figure = functools.partial(figure.Figure, pictures=_pictures)


FIGURES = (
    _figure(
        name="episodes",
        title="Episodes to learn on DeepSea",
        place="Section 5.1",
        says="HyperAgent learns in a number of episodes that is linear in the size (R2 0.90); Ensemble+, HyperDQN "
        "and ENNDQN fail within 10,000 episodes from small sizes on.",
        lines=(
            Line("HyperAgent"),
            Line("HyperDQN", agent="hyperdqn"),
            Line("ENNDQN", agent="enndqn"),
            Line("Ensemble+", agent="ensemble_plus"),
        ),
        problems=(20, 30, 40, 50, 60),
        sources=(_PAPER, _BASELINES),
        finding=findings.growth,
    ),
    _figure(
        name="index_dim",
        title="Index dimension M",
        place="Appendix E.1",
        says="M = 1, an incremental RLSVI, cannot fully solve DeepSea from size 30 on, and larger M helps "
        "slightly (M = 1, 2, 4, 8).",
        lines=tuple(Line(f"M = {m}", {"index_dim": m}) for m in (1, 2, 4, 8)),
        sources=(_PAPER,),
        finding=findings.first_failures,
    ),
    _figure(
        name="index_sampling",
        title="Index sampling schemes",
        place="Appendix E.1",
        says="The default (one index per episode to act with, one per transition for the target), the same index "
        "for all states and a new one for every state have nearly identical performance.",
        lines=(
            Line("default", {"action_index": "episode", "target_index": "transition"}),
            Line("state-independent", {"action_index": "episode", "target_index": "shared"}),
            Line("state-dependent", {"action_index": "step", "target_index": "transition"}),
        ),
        sources=(_PAPER,),
        finding=findings.alike,
    ),
    _figure(
        name="ois_4",
        title="Optimistic index sampling, M = 4",
        place="Appendix E.1",
        says="With M = 4 for all, HyperAgent w. OIS is best, and Ensemble+ with and without optimistic sampling "
        "is subpar.",
        lines=(
            Line("HyperAgent w. OIS", {"index_dim": 4}, "hyperagent_ois"),
            Line("HyperAgent", {"index_dim": 4}),
            Line("Ensemble+ w. OS", {"index_dim": 4}, "ensemble_plus_os"),
            Line("Ensemble+", {"index_dim": 4}, "ensemble_plus"),
        ),
        sources=(_PAPER, _BASELINES, _SYSTEMS),
        finding=functools.partial(findings.against, label="HyperAgent w. OIS", reference="HyperAgent"),
    ),
    _figure(
        name="ois_16",
        title="Optimistic index sampling, ensembles with M = 16",
        place="Appendix E.1",
        says="Ensembles of 16 do better than ensembles of 4, and slightly better with OS, but they still fail "
        "at large sizes.",
        lines=(
            Line("HyperAgent w. OIS, M = 4", {"index_dim": 4}, "hyperagent_ois"),
            Line("HyperAgent, M = 4", {"index_dim": 4}),
            Line("Ensemble+ w. OS, M = 16", {"index_dim": 16}, "ensemble_plus_os"),
            Line("Ensemble+, M = 16", {"index_dim": 16}, "ensemble_plus"),
        ),
        sources=(_PAPER, _ENSEMBLE_16, "paper/ois_4"),
        finding=functools.partial(findings.against, label="Ensemble+, M = 16", reference="HyperAgent, M = 4"),
    ),
    _figure(
        name="large_m",
        title="Large index dimension with 20 sampled indices",
        place="Appendix E.2",
        says="With 20 sampled indices M = 16 is worse than M = 4.",
        lines=tuple(Line(f"M = {m}", {"loss": "sampled", "index_dim": m}) for m in (4, 16)),
        sources=(_SAMPLED, "deep_sea/ablations/large_m"),
        finding=functools.partial(findings.against, label="M = 16", reference="M = 4"),
    ),
    _figure(
        name="num_indices",
        title="Number of sampled indices at M = 16",
        place="Appendix E.2",
        says="At M = 16, more than 20 sampled indices recover part of the lost performance.",
        lines=(
            *(Line(f"{n} indices", {"loss": "sampled", "index_dim": 16, "num_indices": n}) for n in (5, 20, 80)),
            Line("exact expectation", {"loss": "exact", "index_dim": 16, "num_indices": 20}),
        ),
        sources=("deep_sea/ablations/large_m", "paper/large_m"),
        finding=functools.partial(findings.against, label="80 indices", reference="20 indices"),
    ),
    _figure(
        name="sigma",
        title="Standard deviation sigma of the perturbation",
        place="Appendix E.2",
        says="HyperAgent is not sensitive to sigma, and 0.0001 is the default.",
        lines=tuple(Line(f"sigma = {x:g}", {"sigma": x}) for x in (0.0, 1e-4, 1e-3, 1e-2, 0.1)),
        sources=(_PAPER,),
        finding=findings.alike,
    ),
    _figure(
        name="networks",
        title="Network structures under the same update rule",
        place="Appendix E.3",
        says="HyperModel, with all layers generated, cannot solve size 20, and an epinet cannot beyond size 30.",
        lines=(
            Line("last layer (HyperAgent)", {"network": "last_layer", "loss": "sampled"}),
            Line("epinet", {"network": "epinet", "loss": "sampled"}),
            Line("all layers (HyperModel)", {"network": "all_layers", "loss": "sampled"}, "hypermodel"),
        ),
        sources=(_SAMPLED, _SYSTEMS),
        finding=findings.first_failures,
    ),
    _figure(
        name="dependent_target",
        title="Dependent and independent targets",
        place="Appendix E.3",
        says="A target that uses the index of the loss (dependent) gives better results than one with an "
        "independent index, the default.",
        lines=(
            Line("independent", {"loss": "sampled", "target_index": "transition"}),
            Line("dependent", {"loss": "sampled", "target_index": "dependent"}),
        ),
        finding=functools.partial(findings.against, label="dependent", reference="independent"),
    ),
)
