"""Every threshold of the memory causes, with its source (reference/causes_oom_garbled_image.md, S1.4 unless said otherwise)."""

from __future__ import annotations

FITS = 0.85  # of the limit: above is no head room
CERTAIN = 0.95  # of the limit: above does not fit (S1.4, oom.plan-does-not-fit)
UPCAST = 1.5  # kept over stored bytes; measured 2.0 for bfloat16 to float32 (S1.3)
FULL_COPY = 0.8  # of the whole checkpoint in one rank ...
SHARED_PLAN = 0.5  # ... that was to hold no more than this of it
CONSTRUCTED = 0.05  # of the planned bytes, real before the first read
DOUBLE = 1.7  # peak over kept bytes (S1.3: 385 MiB for 192)
FEW_FILE_PAGES = 0.2  # of the kept bytes
LISTED = 0.8  # of the bytes to read, held when the first value is placed: a list has all of them, a whole file one file's (S1.3, S1.5)
STAGED = 96 << 20  # bytes: what reading threads may stage before one of them places its first value (at most 2 x 32 MiB, and noise)
RETAINED = 0.10  # of the kept bytes, left when loading has ended
REPACK = 0.8  # of the largest tensor or of the kept bytes, above both ends of the conversion
CACHE_ANON = 0.7  # of the limit: below it anonymous memory is not what filled the group ...
CACHE_FILE = 0.25  # ... when file pages are above this
CACHED = 0.05  # of the capacity, reserved and not allocated
SHM_USED = 0.95
NEIGHBOUR = 0.02  # of the capacity, used before start
COMM = 256 << 20  # bytes outside the framework after the KV cache was sized
GRAPH = 100 << 20  # bytes above the estimate
SMALL = 24 << 20  # bytes: rises below are noise of allocator and threads
