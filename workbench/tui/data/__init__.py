"""What the screens show: immutable snapshots, each read from the store in a thread by one bounded set of queries."""
