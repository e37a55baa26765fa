"""Properties of all csv readers: any text is read or refused in one line, and what is written is read back."""

import pathlib
import tempfile

import hypothesis
from hypothesis import strategies as st
import pytest

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources
from hyperagent_jax.analysis.atari import read as atari
from hyperagent_jax.analysis.bsuite import logs
from hyperagent_jax.analysis.deep_sea import read as deep_sea

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=150)
DEEP_SEA = (*deep_sea.NEEDED, "num_params", "eval_every", "error", "sigma")
ATARI = (*atari.NEEDED, "num_params", "error")
CURVE = ("game", "seed", "interactions", "eval_score")
LOG = ("steps", "episode", "total_return", "episode_len", "episode_return", "total_regret")
# What rows hold, what they might hold, and what a csv file may choke on.
CELLS = st.one_of(
    st.sampled_from(
        [
            "0",
            "1",
            "20",
            "1.5",
            "-3",
            "nan",
            "inf",
            "1e999",
            "9" * 5_000,
            "True",
            "False",
            "",
            " ",
            "Pong",
            "a,b",
            '"',
        ]
    ),
    st.text(max_size=4),
)


def _tables(columns):
    """Any text; and files with some of these columns, rows of any length, quoted or not, cut short anywhere."""

    @st.composite
    def table(draw):
        heading = draw(st.permutations(columns)) if draw(st.booleans()) else list(columns)
        heading = heading[: draw(st.integers(len(columns) - 1, len(columns)))]
        same = st.lists(CELLS, min_size=len(heading), max_size=len(heading))
        rows = draw(st.lists(st.one_of(same, same, same, st.lists(CELLS, max_size=8)), max_size=4))
        quote = draw(st.sampled_from([lambda x: x, lambda x: '"' + x.replace('"', '""') + '"']))
        end = draw(st.sampled_from(["\n", "\r\n"]))
        text = "".join(",".join(map(quote, row)) + end for row in [heading, *rows])
        return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 4)) == 0 else text

    return st.one_of(table(), st.text())


def _is_read_or_refused(read):
    try:
        read()
    except errors.UserError as error:
        assert len(str(error).splitlines()) == 1, str(error)


@SETTINGS
@hypothesis.given(text=_tables(DEEP_SEA))
def test_results_of_deep_sea(text):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "results.csv").write_text(text, newline="")
        _is_read_or_refused(lambda: deep_sea.read([folder]))
        assert sources.kind(folder) in sources.KINDS


@SETTINGS
@hypothesis.given(text=_tables(ATARI), curve=_tables(CURVE))
def test_results_and_curves_of_atari(text, curve):
    whole = "game,agent,seed,score,interactions\nPong,a,0,1,2\n"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "results.csv").write_text(text, newline="")
        _is_read_or_refused(lambda: atari.read([folder]))
        (pathlib.Path(folder) / "curve.csv").write_text(curve, newline="")
        _is_read_or_refused(lambda: atari.read([folder]))
        (pathlib.Path(folder) / "results.csv").write_text(whole)
        _is_read_or_refused(lambda: atari.read([folder]))


@SETTINGS
@hypothesis.given(text=_tables(LOG))
def test_logs_of_bsuite(text):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "log.csv"
        file.write_text(text, newline="")
        _is_read_or_refused(lambda: logs.last_episode(file, "catch/0"))


@SETTINGS
@hypothesis.given(content=st.binary(max_size=60))
def test_bytes_that_are_not_text(content):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "results.csv").write_bytes(content)
        _is_read_or_refused(lambda: deep_sea.read([folder]))
        _is_read_or_refused(lambda: atari.read([folder]))
        _is_read_or_refused(lambda: logs.read(pathlib.Path(folder) / "results.csv", "catch/0"))
        assert sources.kind(folder) in sources.KINDS


@st.composite
def _written(draw):
    fields = draw(st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
    row = st.fixed_dictionaries({field: st.text(max_size=8) for field in fields})
    return fields, draw(st.lists(row, max_size=4))


@SETTINGS
@hypothesis.given(table=_written())
def test_rows_are_read_back_as_written(table):
    fields, rows = table
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "table.csv"
        results.write_csv(path, fields, rows)
        assert results.read_csv(path) == rows


@pytest.mark.parametrize(
    "value", ["a\nb", "a\r\nb", "a\rb", 'say "no", twice', "\x1c\x85\u2028", "", " a ", "\x00"]
)
def test_values_with_line_breaks_are_read_back(value, tmp_path):
    rows = [{"agent": value, "seed": "0"}, {"agent": "b", "seed": value}]
    results.write_csv(tmp_path / "table.csv", ["agent", "seed"], rows)
    assert results.read_csv(tmp_path / "table.csv") == rows


def test_a_run_that_is_there_twice_is_refused_in_one_line(tmp_path):
    row = dict.fromkeys(deep_sea.NEEDED, "1") | {"agent": "two\nlines", "solved": "True"}
    results.write_csv(tmp_path / "results.csv", row, [row, row])
    with pytest.raises(errors.UserError, match="twice in .*: two lines, size 1, seed 1") as error:
        deep_sea.read([str(tmp_path)])
    assert "\n" not in str(error.value)
