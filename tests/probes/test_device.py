import importlib.util
import os

import pytest

from probes import device
from traces import schema

WITH_NVIDIA = importlib.util.find_spec("pynvml") is not None and os.path.exists("/dev/nvidia0")


@pytest.mark.skipif(WITH_NVIDIA, reason="there is an NVIDIA device")
def test_without_a_device_it_says_so_and_invents_no_numbers(rows):
    with pytest.raises(device.NoDeviceReader) as caught:
        device.DeviceSampler(rows)
    assert caught.value.hint
    assert rows.by_table == {}
    assert device.inventory()["unread"] == caught.value.message


@pytest.mark.skipif(not WITH_NVIDIA, reason="needs an NVIDIA device and nvidia-ml-py")
def test_gauges_of_a_real_device(rows):
    device.DeviceSampler(rows, ranks={0: 3}).sample()
    first = rows.of(schema.DEVICE)[0]
    assert first["device"] == "cuda:0" and first["rank"] == 3
    assert 0 <= first["memory_used"] <= first["memory_total"]
    assert 0 <= first["utilisation"] <= 1
