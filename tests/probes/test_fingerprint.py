import json
import os
import platform
import subprocess
import sys
from importlib import metadata

import psutil
import pytest

from probes import environ
from probes.fingerprint import Difference, diff, fingerprint, model_revision


@pytest.fixture(scope="module")
def here():
    return fingerprint()


def test_agrees_with_what_other_libraries_say(here):
    assert here["os"]["kernel"] == platform.release()
    assert here["memory"]["total"] == psutil.virtual_memory().total
    assert here["cpu"]["logical"] == psutil.cpu_count()
    assert here["packages"]["torch"] == metadata.version("torch")
    assert set(here["network"]) >= set(psutil.net_if_addrs())
    assert here["limits"]["nofile"] == psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[0]


def test_is_json_and_does_not_import_torch():
    code = "import sys, json; from probes.fingerprint import fingerprint; json.dumps(fingerprint()); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout == b"False\n"


def test_two_of_the_same_machine_do_not_differ(here):
    assert diff(here, fingerprint()) == []
    changed = diff(here, fingerprint(), volatile=True)
    assert "taken" in {difference.key for difference in changed}


def test_a_changed_variable_is_named(here, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert diff(here, fingerprint()) == [Difference("env.GLOO_SOCKET_IFNAME", None, "eth7")]


def test_torch_facts_on_request():
    import torch

    facts = fingerprint(torch_info=True)["torch"]
    assert facts["version"] == torch.__version__
    assert "gloo" in facts["backends"]
    json.dumps(facts)


SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuv",
    "WORKBENCH_API_KEY": "0123",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic Zm9v",
    "https_proxy": "http://joe:hunter2@proxy.example:3128",
    "VLLM_EXTRA": "--api sk-abcdefghijklmnop1234",
}


def test_secrets_never_appear(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    text = json.dumps(environ.of_interest())
    assert all(name in text for name in SECRETS)
    assert not [value for value in ("hf_abcdef", "0123", "Zm9v", "hunter2", "joe", "sk-abc") if value in text]
    assert "http://<redacted>@proxy.example:3128" in text


def test_names_that_only_look_secret_are_kept():
    kept = {"TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}
    assert environ.of_interest(kept | {"HOME": "/home/joe", "MY_VARIABLE": "1"}) == dict(sorted(kept.items()))


def test_a_model_revision_names_the_file_that_changed(tmp_path):
    import numpy
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text('{"num_experts": 8}')
    save_file({"a": numpy.zeros(4, numpy.float32)}, tmp_path / "model-1.safetensors")
    before = model_revision(tmp_path)
    assert set(before) == {"config.json", "model-1.safetensors"}
    (tmp_path / "config.json").write_text('{"num_experts": 9}')
    after = model_revision(tmp_path)
    assert [difference.key for difference in diff({"model": before}, {"model": after})] == ["model.config.json"]
    save_file({"b": numpy.zeros(4, numpy.float32)}, tmp_path / "model-1.safetensors")
    assert model_revision(tmp_path)["model-1.safetensors"] != after["model-1.safetensors"]
    os.truncate(tmp_path / "model-1.safetensors", 4)
    assert model_revision(tmp_path)["model-1.safetensors"]
