"""oom-on-load: memory runs out while a model is loaded, or a loaded model has no room to serve. One file a root cause.

The order of questions (the reference's S1.1): who killed it; does it fit on paper; which phase rose; what does the rise scale with;
did it fall back. Anonymous memory decides; pages of mapped files are context, because the kernel takes them back.
"""
