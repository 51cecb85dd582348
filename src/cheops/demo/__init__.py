"""Three real sites on this machine, for `cheops demo` and the tutorial: agents, wires, applications."""
