"""The Day-0 ladder: one new variable a rung, from the environment to pictures."""
