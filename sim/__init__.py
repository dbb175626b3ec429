"""Replay TileLang kernels on a CPU, word for word, with NumPy alone."""
