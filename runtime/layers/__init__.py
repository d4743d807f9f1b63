"""The parts of a decoder layer, as functions of tensors and weights."""
