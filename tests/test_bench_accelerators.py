"""The table of programs compiled for accelerators: what it reads from a compiled program, and its refusals."""

import importlib.util
from importlib.util import find_spec
import pathlib
import subprocess
import sys

import pytest
import scripts

BENCH = pathlib.Path(__file__).resolve().parents[1] / "experiments" / "bench.py"

# As XLA prints it: a loop of two steps, in which a scatter runs row by row in a loop of four.
COMPILED = """
HloModule jit_advance

%rows.1 (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %row = f32[8]{0} fusion(%p), kind=kLoop, backend_config={"estimated_cycles":"100"}
  ROOT %out = (s32[], f32[8]) tuple(%p, %row)
}

%below.1 (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %end = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

%step.1 (p: (s32[], f32[500,1000])) -> (s32[], f32[500,1000]) {
  %p = (s32[], f32[500,1000]) parameter(0)
  %big = f32[500,1000]{1,0} copy(%p)
  %small = bf16[500,999]{1,0} copy(%p)
  %gather.7 = f32[8]{0} fusion(%p), kind=kLoop
  %dot.1 = f32[8]{0} fusion(%p), kind=kOutput, backend_config={"estimated_cycles":"540"}
  %while.2 = (s32[], f32[8]) while(%p), condition=%below.1, body=%rows.1, metadata={op_name="jit(f)/scatter-add"}
  ROOT %out = (s32[], f32[500,1000]) tuple(%p, %big)
}

%more.1 (p: (s32[], f32[500,1000])) -> pred[] {
  %p = (s32[], f32[500,1000]) parameter(0)
  ROOT %any = pred[] custom-call(%p)
}

ENTRY %main.1 (a: f32[500,1000]) -> f32[500,1000] {
  %a = f32[500,1000]{1,0} parameter(0)
  %once = f32[500,1000]{1,0} copy(%a), backend_config={"estimated_cycles":"7"}
  %while.1 = (s32[], f32[500,1000]) while(%once), condition=%more.1, body=%step.1
  ROOT %out.1 = f32[500,1000]{1,0} get-tuple-element(%while.1), index=1
}
"""


def test_what_is_read_from_a_compiled_program():
    spec = importlib.util.spec_from_file_location("hlo", BENCH.with_name("hlo.py"))
    hlo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hlo)
    text = hlo.Text(COMPILED)
    assert (text.entry, text.step(0), text.step(1)) == ("main.1", "main.1", "step.1")
    step = text.step(1)
    assert text.cycles(step) == 540 + 4 * 100
    assert text.microseconds(step) == pytest.approx(1.0)  # at 0.94 GHz
    assert text.cycles("main.1") == 7 + text.cycles(step)  # a loop without a known end counts once
    assert text.without_estimate(step) == 1
    assert text.row_loops(step) == 1
    assert text.kernels(step) == 4 + 4  # two copies, two fusions, and the rows
    assert text.large_copies(step) == 1


def test_what_cannot_be_compiled_is_one_line_and_deletes_nothing(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "bench.csv").write_text("program\n")
    expected = {
        ("--targets=gpu",): "--targets has no 'gpu'; choose from cpu, tpu, cuda",
        ("--programs=chess",): "--programs has none of deepsea 20, ",
    }
    if not find_spec("libtpu"):
        expected["--targets=tpu", "--overwrite", f"--logdir={folder}"] = "no target to compile for"
    scripts.check_errors(BENCH, expected, tmp_path, ["--benchmark=accelerators"])
    assert (folder / "bench.csv").read_text() == "program\n"


@pytest.mark.slow
def test_the_row_of_a_program(tmp_path):
    command = [sys.executable, BENCH, "--benchmark=accelerators", "--programs=tabular", f"--logdir={tmp_path}"]
    done = subprocess.run([*command, "--targets=cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "estimates and counts by the compilers, not measurements" in done.stdout
    (row,) = scripts.rows(tmp_path / "bench.csv")
    assert row["program"] == "tabular hyperagent" and float(row["cpu_us"]) > 0
