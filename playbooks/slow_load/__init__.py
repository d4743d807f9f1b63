"""slow-load: a cold start takes long. One file a root cause; what each phase and each rank did is in `account.py`.

The order of questions (the reference's S7): which phase; bytes read against bytes needed; reads or faults; one stream or several; what
happens after the bar has reached its end.
"""
