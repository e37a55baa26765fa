"""Estimates for accelerators that are not present: compiles the main programs for a TPU v5e and an H100.

Both compilers run on any machine (extras aot-tpu and aot-cuda). Nothing runs on an accelerator: `tpu_us` is the
TPU compiler's own estimate of one step, without gathers and scatters, whose number is `tpu_gathers`;
`tpu_row_loops` are the scatters that it would run row by row. `cuda_kernels` is the number of kernels a GPU
launches per step, at about 4 microseconds each, and `cuda_copies` how many of them copy a megabyte or more. Memory
is that of arguments and temporaries. `cpu_us` is measured on this machine, including the evaluation after a chunk;
it is processor time, because other jobs hardly change that.
A step is a step of 16 seeds on DeepSea, an update or a choice of actions on Atari, or an episode of 32 tabular
seeds.
"""

from collections.abc import Iterator
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from absl import flags

from hyperagent_jax import errors

FLAGS = flags.FLAGS
TARGETS = {
    "cpu": ("jax", ""),
    "tpu": ("libtpu", "aot-tpu"),
    "cuda": ("jax_plugins.xla_cuda12", "aot-cuda"),
}
# Name: kind, its arguments, how many loops deep a step is, and steps per call.
PROGRAMS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "deepsea 20": ("deep_sea_chunk", dict(agent="hyperagent", size=20, num_seeds=16), 2, 1_000),
    "deepsea 120 (lazy Adam)": ("deep_sea_chunk", dict(agent="hyperagent", size=120, num_seeds=16), 2, 1_000),
    "deepsea 20, 4 prioritised updates": (
        "deep_sea_chunk",
        dict(agent="hyperagent_prioritized", size=20, num_seeds=16),
        2,
        1_000,
    ),
    "deepsea 20, bootdqn": ("deep_sea_chunk", dict(agent="bootdqn", size=20, num_seeds=16), 2, 1_000),
    "deepsea 20, enndqn": ("deep_sea_chunk", dict(agent="enndqn", size=20, num_seeds=16), 2, 1_000),
    "atari update": ("atari_update", dict(agent="hyperagent"), 0, 1),
    "atari update, gradient penalty": ("atari_update", dict(agent="hyperagent", preset="released"), 0, 1),
    "atari update, bfloat16": ("atari_update", dict(agent="hyperagent", conv_dtype="bfloat16"), 0, 1),
    "atari act": ("atari_act", dict(agent="hyperagent"), 0, 1),
    "tabular hyperagent": ("tabular", dict(agent="hyperagent"), 1, 100),
}
flags.DEFINE_list("targets", list(TARGETS), f"What --benchmark=accelerators compiles for: {', '.join(TARGETS)}.")
flags.DEFINE_list("programs", [], "Programs of --benchmark=accelerators whose names begin so; all by default.")
# Known facts of an H100 (SXM) that its compiler asks for.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 1 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def identity() -> dict[str, Any]:
    """What results in a folder must have in common."""
    return {"experiment": "bench_accelerators"}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _chosen() -> list[str]:
    names = [name for name in PROGRAMS if not FLAGS.programs or name.startswith(tuple(FLAGS.programs))]
    if not names:
        raise errors.UserError(f"--programs has none of {', '.join(PROGRAMS)}")
    return names


def _environment(target: str) -> dict[str, str]:
    """The environment of a process that compiles for a target; the process itself stays on the CPU."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    spec = importlib.util.find_spec("nvidia.cuda_nvcc") if target == "cuda" and _is_installed("nvidia") else None
    for folder in spec.submodule_search_locations or () if spec else ():
        environment["PATH"] = f"{folder}/bin:{environment['PATH']}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={folder}"
    return environment


def tables() -> list[tuple[str, Iterator[dict]]]:
    """The one table; what cannot be made is told at once."""
    names = _chosen()
    for target in FLAGS.targets:
        if target not in TARGETS:
            raise errors.UserError(f"--targets has no {target!r}; choose from {', '.join(TARGETS)}")
    missing = [target for target in FLAGS.targets if not _is_installed(TARGETS[target][0])]
    for target in missing:
        module, extra = TARGETS[target]
        print(f"skipping {target}: {module} is not installed (pip install 'hyperagent_jax[{extra}]')")
    targets = [target for target in FLAGS.targets if target not in missing]
    if not targets:
        raise errors.UserError("no target to compile for")
    print("All numbers except cpu_us are estimates and counts by the compilers, not measurements.\n")
    return [("bench", _rows(targets, names))]


def _rows(targets: list[str], names: list[str]) -> Iterator[dict]:
    found: dict[str, dict] = {name: {"program": name} for name in names}
    for target in targets:
        process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__)), target, *found],
            env=_environment(target),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        output, error = process.communicate()
        if process.returncode:
            raise errors.UserError(f"compiling for {target} failed: {(error.strip().splitlines() or ['?'])[-1]}")
        for line in output.splitlines():
            if line.startswith('{"program"'):
                row = json.loads(line)
                found[row["program"]].update(row)
    yield from found.values()


def _measured(compiled: Any, program: Any, num_steps: int) -> float:
    """Microseconds of processor time of one step, here; the faster of two calls."""
    import jax

    seconds = []
    for _ in range(2):
        arguments = jax.block_until_ready(jax.jit(program.make_arguments)())
        begin = time.process_time()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.process_time() - begin)
    return 1e6 * min(seconds) / num_steps


def _compile(target: str, name: str) -> dict:
    """One target's part of a row."""
    import hlo
    import jax
    from jax.experimental import topologies

    from hyperagent_jax.experiment import programs

    kind, settings, depth, num_steps = PROGRAMS[name]
    program = getattr(programs, kind)(**settings)
    if target == "cpu":
        compiled = program.jitted().lower(*program.arguments).compile()
        return {"cpu_us": round(_measured(compiled, program, num_steps), 1)}
    if target == "tpu":
        topology, options = topologies.get_topology_desc("v5e:2x2", platform="tpu"), {}
    else:  # without a device there is nothing to tune on
        topology = topologies.get_topology_desc(platform="cuda", target_config=_H100, topology="1x1x1")
        options = {"xla_gpu_autotune_level": "0"}
    place = jax.sharding.SingleDeviceSharding(topology.devices[0])
    arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), program.arguments)
    compiled = program.jitted().lower(*arguments).compile(compiler_options=options)
    memory, text = compiled.memory_analysis(), hlo.Text(compiled.as_text())
    step = text.step(depth)
    sizes = {
        f"{target}_arguments_mb": round(memory.argument_size_in_bytes / 1e6, 1),
        f"{target}_temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
    }
    if target == "tpu":
        counts = {
            "tpu_us": round(text.microseconds(step), 1),
            "tpu_gathers": text.without_estimate(step),
            "tpu_row_loops": text.row_loops(step),
        }
    else:
        counts = {"cuda_kernels": text.kernels(step), "cuda_copies": text.large_copies(step)}
    return {**counts, **sizes}


if __name__ == "__main__":
    import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

    for one in sys.argv[2:]:
        print(json.dumps({"program": one, **_compile(sys.argv[1], one)}), flush=True)
