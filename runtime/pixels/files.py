"""Files of pictures: which kinds are read, and what PIL's readers raise for damaged ones."""

from __future__ import annotations

import struct

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # no others: some of PIL's readers start programs
DAMAGED = (ArithmeticError, EOFError, LookupError, TypeError, struct.error)  # besides the errors of decoding
