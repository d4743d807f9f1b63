"""The error tree of every floor. An error knows its exit code and says what to do.

WorkbenchError (1)
├── UsageError (2)          the request or an input file cannot be used
│   ├── UnknownRun          no run of that name
│   ├── SchemaTooNew        the store was written by a newer workbench
│   ├── NotWritable         the run folder cannot be written
│   ├── QueryError          a statement is not allowed, wrong, too slow or too large
│   └── CheckpointError     a checkpoint is missing, damaged, or of an unsupported kind
├── BadAnswer (3)           the question was answered, and the answer is bad
├── StoreBusy (1)           another process holds the store's file
└── Unreachable (1)         a collector, server or rank does not answer
"""

from __future__ import annotations


class WorkbenchError(Exception):
    """Anything a person should read as one sentence with a remedy, never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(WorkbenchError):
    exit_code = 2


class UnknownRun(UsageError):
    pass


class SchemaTooNew(UsageError):
    pass


class NotWritable(UsageError):
    pass


class QueryError(UsageError):
    pass


class CheckpointError(UsageError):
    pass


class BadAnswer(WorkbenchError):
    exit_code = 3


class StoreBusy(WorkbenchError):
    pass


class Unreachable(WorkbenchError):
    pass
