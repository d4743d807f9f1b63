import subprocess
import sys

from probes.procfile import ProcFile, fields, kib, read_int, read_text


def test_missing_is_none_never_zero(tmp_path):
    assert read_text(tmp_path / "no") is None
    assert read_int(tmp_path / "no") is None
    assert ProcFile(tmp_path / "no").read() is None
    assert kib(None) is None


def test_a_kept_descriptor_reads_the_present_value():
    clock = ProcFile("/proc/uptime")
    first = float(clock.read().split()[0])
    sum(range(300_000))
    while float(clock.read().split()[0]) == first:
        pass
    clock.close()


def test_a_process_that_is_gone_reads_as_none():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = ProcFile(f"/proc/{child.pid}/status")
    assert f"Pid:\t{child.pid}\n" in status.read()
    child.communicate(b"\n")
    assert status.read() is None


def test_fields():
    assert fields("VmHWM:\t    1620 kB\nThreads:\t1\n") == {"VmHWM": "1620 kB", "Threads": "1"}
    assert fields("nr_periods 7\nthrottled_time 0") == {"nr_periods": "7", "throttled_time": "0"}
    assert kib("1620 kB") == 1620 * 1024
