"""`python -m sim`: a program that uses torch and TileLang, run without a GPU and without a change.

    gpu       torch answers as if a GPU were there; what a program puts on it stays in the CPU's memory
    kernels   where TileLang would compile a kernel for a GPU it is given a simulated one
    session   one call of a kernel: its cost, its limit, its words, what went wrong
    summary   what is said at the end

`gpu` and `kernels` import torch and TileLang; nothing but `python -m sim` loads them.
"""
