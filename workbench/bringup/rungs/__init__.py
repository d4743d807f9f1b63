"""One rung a file; each says what it adds to those before it."""
