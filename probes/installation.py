"""Checks of this installation: Python, packages, torch, DuckDB, the shipped model."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from probes.doctor import Check
from probes.packages import version
from traces.errors import WorkbenchError

DISTRIBUTION = "workbench-moe"
ENGINE = """
import torch, torch.distributed as d
from probes.torch_info import distributed_backends
print(torch.__version__, ",".join(distributed_backends()) or "-")
"""
ENGINE_TIMEOUT = 120  # seconds: the first import of torch from a cold network disk takes most of a minute
_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)\s*([<>=!~0-9.,\s]*)(?:;.*)?$")


def python() -> Check:
    """Which one; too old a Python does not get as far as this (requires-python, and the syntax)."""
    return Check("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}")


def packages() -> Check:
    """Every declared dependency is there in a version that the declaration allows."""
    try:
        declared = [line for line in metadata.requires(DISTRIBUTION) or [] if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return Check("packages", "unknown", f"{DISTRIBUTION} is not installed as a package", "pip install -e . in the checkout")
    bad = [fault for line in declared if (fault := unmet(line))]
    if bad:
        names = " ".join(f"'{line.split(';')[0].strip()}'" for line in declared if unmet(line))
        return Check("packages", "fail", "; ".join(bad), f"pip install {names}")
    return Check("packages", "ok", f"{len(declared)} dependencies, all in range")


def unmet(requirement: str) -> str:
    """What is wrong with an installed package against `name>=1.2,<3`; empty when nothing is."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return ""
    name, ranges = match.groups()
    found = version(name)
    if found is None:
        return f"{name} is missing"
    for bound in filter(None, (part.strip() for part in ranges.split(","))):
        operator, wanted = bound[: 2 if bound[1] == "=" else 1], bound.lstrip("<>=!~")
        have, want = _numbers(found), _numbers(wanted)
        allowed = {">=": have >= want, "<": have < want, "<=": have <= want, ">": have > want, "==": have == want, "!=": have != want}
        if not allowed.get(operator, True):
            return f"{name} {found} is not {bound}"
    return ""


def torch() -> Check:
    """Present and which build, without the seconds its import takes."""
    found = version("torch")
    if found is None:
        return Check(
            "torch", "fail", "torch is not installed", "install a torch build for this machine; `serve` needs it, reading runs does not"
        )
    return Check("torch", "ok", f"{found} (not imported)")


def engine() -> Check:
    """Imports torch in a process of its own, as a rank would, and asks for the back ends of torch.distributed."""
    command = [sys.executable, "-c", ENGINE]
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_TIMEOUT, cwd=root)
    except subprocess.TimeoutExpired:
        return Check("torch", "fail", f"importing torch took more than {ENGINE_TIMEOUT} s", "install it on a local disk")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check("torch", "fail", f"torch cannot be imported: {said}", "install a torch build for this machine")
    release, backends = done.stdout.split()
    if "gloo" not in backends and "nccl" not in backends:
        return Check("torch", "fail", f"torch {release}, back ends: {backends}", "install a torch build with torch.distributed")
    return Check("torch", "ok", f"{release}, back ends: {backends}")


def store() -> Check:
    """Writes and reads a database."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="workbench-doctor-") as folder:
        try:
            with duckdb.connect(f"{folder}/probe.duckdb") as database:
                database.execute("CREATE TABLE t AS SELECT range AS i FROM range(1000)")
                row = database.execute("SELECT sum(i) FROM t").fetchone()
        except duckdb.Error as error:
            return Check("store", "fail", f"DuckDB cannot write: {error}", "look at the permissions and the space of the temporary folder")
    if row is None or row[0] != 499_500:
        return Check("store", "fail", f"DuckDB {duckdb.__version__} answers 1+...+999 = {row}", "reinstall duckdb")
    return Check("store", "ok", f"DuckDB {duckdb.__version__} writes and reads")


def model(folder: Path) -> Check:
    """The shipped checkpoint is whole, by its headers."""
    from probes.checkpoint import Checkpoint

    try:
        checkpoint = Checkpoint.open(folder)
    except WorkbenchError as error:
        return Check("model", "fail", error.message, error.hint)
    return Check("model", "ok", f"{len(checkpoint.tensors)} tensors in {folder.name}")


def _numbers(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13): without the zeros at the end, so that 3 equals 3.0."""
    numbers = [int(part) for part in re.findall(r"\d+", text.split("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
