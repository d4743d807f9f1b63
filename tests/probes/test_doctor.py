import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from probes import installation, surroundings
from probes.doctor import examine


def test_every_check_answers_and_a_bad_one_says_what_to_do(tmp_path):
    checks = list(examine(tmp_path / "runs"))
    assert len({check.name for check in checks}) == len(checks) >= 13
    for check in checks:
        assert check.observed
        assert check.status in ("ok", "unknown") or check.remedy
    by_name = {check.name: check for check in checks}
    assert by_name["python"].status == by_name["packages"].status == by_name["store"].status == by_name["loopback"].status == "ok"


def test_it_does_not_import_torch():
    code = (
        "import sys; from pathlib import Path; from probes.doctor import examine; "
        "import tempfile; list(examine(Path(tempfile.mkdtemp()))); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout == b"False\n"


def test_deep_imports_torch_elsewhere():
    check = installation.engine()
    assert check.status == "ok" and "gloo" in check.observed


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("numpy>=2.0", ""),
        ("numpy>=2.0,<3", ""),
        ("numpy", ""),
        ("numpy>=999", "is not >=999"),
        ("numpy<2", "is not <2"),
        ("no-such-package>=1", "is missing"),
        ("torch>=2.6", ""),
        ("duckdb>=2.0,<3", ""),
    ],
)
def test_versions_against_their_ranges(requirement, said):
    found = installation.unmet(requirement)
    assert found.endswith(said) if said else found == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert surroundings.runs_folder(tmp_path / "runs").status == "fail"


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "runs").write_text("")
    check = surroundings.runs_folder(tmp_path / "runs")
    assert check.status == "fail" and "WORKBENCH_RUNS" in check.remedy


def test_file_systems_agree_with_psutil():
    kinds = {partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)}
    assert surroundings.file_system(Path("/")) == kinds["/"]
    assert surroundings.file_system(Path("/proc/self")) == "proc"
    assert surroundings.file_system(Path("/dev/shm/x")) == kinds.get("/dev/shm", kinds.get("/dev", kinds["/"]))


def test_a_taken_port_is_named():
    if surroundings.otlp_ports().status != "ok":
        pytest.skip("a collector runs on this machine")
    with socket.create_server(("127.0.0.1", 4318)):
        check = surroundings.otlp_ports()
    assert check.status == "warn" and "4318 (OTLP/HTTP)" in check.observed and "4317" not in check.observed


def test_a_terminal_without_utf8_is_named():
    code = "from probes.surroundings import terminal; c = terminal(); print(c.status, c.observed)"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONUTF8"))}
    env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TERM": "dumb"}
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout
    assert said.startswith("warn TERM=dumb")


def test_a_damaged_model_fails_with_its_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 4)
    check = installation.model(tmp_path)
    assert check.status == "fail" and check.remedy
