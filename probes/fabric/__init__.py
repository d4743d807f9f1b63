"""Tests of the network before a model is blamed: do collectives give the right numbers, and how fast is every ordered pair.

`rank.py` is a rank's program and imports torch; `launch.py` starts ranks and reads what they found; `answer.py` is the result.
"""
