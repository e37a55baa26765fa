"""Installs hyperagent_jax. The exact versions it is tested with are in requirements.txt."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent

# Lower bounds are the oldest versions that the tests were run with, caps the next release that may break.
# The newest jax, flax, numpy and envpool need Python 3.12; these bounds resolve on 3.11.
INSTALL_REQUIRES = [
    "absl-py>=2.3.1,<3",
    "chex>=0.1.90,<0.2",
    "dm-env>=1.6,<2",
    "flax>=0.11,<0.13",
    "jax>=0.7,<0.11",
    "jaxlib>=0.7,<0.11",
    "numpy>=2.0,<2.5",
    "optax>=0.2.5,<0.3",
    "rlax>=0.1.8,<0.2",
    "tqdm>=4.66,<5",
]

EXTRAS_REQUIRE = {
    "bsuite": ["bsuite>=0.3.5,<0.4", "pandas>=2.2,<4"],
    "atari": ["envpool>=1.2,<1.3", "gymnasium>=1.0,<2", "pillow>=10,<14"],
    "gymnasium": ["gymnasium>=1.0,<2"],
    "gymnax": ["gymnax>=1.0,<2"],
    "pgx": ["pgx>=2.6,<3"],
    "navix": ["navix>=0.7,<0.8"],  # brings wandb, which it imports, and its own development tools
    "sweep": ["matplotlib>=3.9,<4"],
    "tensorboard": ["tensorboardX>=2.6,<3"],
    "ray": ["ray>=2.50,<3"],
    "slurm": ["submitit>=1.5,<2"],
    "docs": [  # builds the site without network access; its formulas are MathML, made by latex2mathml
        "latex2mathml>=3.78,<4",
        "mkdocs>=1.6,<2",
        "mkdocs-material>=9.6,<10",
        "mkdocstrings[python]>=0.30,<2",
    ],
}
EXTRAS_REQUIRE["dev"] = sorted(
    {
        "dm-haiku>=0.0.14,<0.1",
        "equinox>=0.12,<0.14",
        "flashbax>=0.1.2,<0.2",
        "hypothesis>=6.100,<7",
        "mypy>=1.15,<3",
        "packaging>=24",
        "pytest>=8.3,<10",
        "pytest-timeout>=2.3,<3",
        "pytest-xdist>=3.6,<4",
        "ruff>=0.14,<0.18",
        "scipy>=1.14,<2",
    }.union(*EXTRAS_REQUIRE.values())
)
# Compilers of accelerators, for `bench.py --benchmark=accelerators` on a machine without one. Not in `dev`: libtpu
# belongs to one version of jax, and jax looks for a device as soon as one of them is installed.
EXTRAS_REQUIRE["aot-tpu"] = ["libtpu>=0.0.40,<0.1"]
EXTRAS_REQUIRE["aot-cuda"] = [
    "jax-cuda12-plugin>=0.7,<0.11",
    "jax-cuda12-pjrt>=0.7,<0.11",
    "nvidia-cuda-nvcc-cu12>=12.6",
]


def read_version() -> str:
    """The version in hyperagent_jax/__init__.py, read without importing what may not be installed yet."""
    text = (ROOT / "hyperagent_jax" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('hyperagent_jax/__init__.py has no line of the form __version__ = "..."')
    return match.group(1)


def read_readme() -> str:
    """The text of README.md, or nothing when it is not there."""
    path = ROOT / "README.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


setuptools.setup(
    name="hyperagent_jax",
    version=read_version(),
    description="HyperAgent (ICML 2024) in JAX: posterior sampling over Q* with a linear hypermodel",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=setuptools.find_packages(include=["hyperagent_jax", "hyperagent_jax.*"]),
    package_data={"hyperagent_jax": ["py.typed", "**/*.csv", "**/*.json"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
)
