"""Habana's PyTorch bridge as far as optimum-habana 1.21.2 asks for it, computed on the CPU (gaudi.md §4.3)."""
