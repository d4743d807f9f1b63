"""Every tensor a checkpoint holds, derived from config.json alone or taken from headers alone. Torch-free.

`workbench plan` sums it, `workbench verify` compares files with it. It describes what is *stored*; runtime/arch.py describes what is
*computed*, and knows fewer architectures.
"""
