"""Single instructions on a real GPU against the simulator: `python -m gpu.probes` on a machine with an H200.

`scalar.cu` and `tensor.cu` run one instruction, or one C expression, on arrays of words; `families` makes the words;
the sections compare every result word with `sim` in parallel and report what differs:

    mufu      all 2**32 inputs of each approximation
    scalar    arithmetic, conversions, half precision: instructions and compiled C, precise and fast
    tensor    mma.sync and wgmma
    facts     what no model claims yet: the measured words for directed inputs
"""
