"""The API process: OpenAI-compatible HTTP, metrics, control; talks to the ranks over loopback frames. Never imports torch."""
