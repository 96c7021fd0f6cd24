"""Step and reset of a batch of ARC environments, in C++ or XLA."""
