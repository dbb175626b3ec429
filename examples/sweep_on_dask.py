"""A sweep on a Dask cluster: the arguments of `python -m crosscheck sweep`, its rows computed by the cluster's workers.

python examples/sweep_on_dask.py --variant all --mask causal --block-M 64,128 --out sweep.jsonl
"""

import sys

import joblib
from distributed import Client, LocalCluster

from crosscheck.cli import main

if __name__ == "__main__":
    # Client("tcp://scheduler:8786") is a cluster of your own; its workers need tilewords and the files of the sweep.
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster), joblib.parallel_config("dask"):
        code = main(["sweep", *sys.argv[1:]])
    sys.exit(code)
