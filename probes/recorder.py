"""The recorder under the name probes know it by."""

from traces.producer import NullRecorder, Recorder, Recording

__all__ = ["NullRecorder", "Recorder", "Recording"]
