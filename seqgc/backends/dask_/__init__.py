"""Workers on a dask.distributed cluster (extra ``dask``)."""

from seqgc.backends.dask_._backend import DaskBackend as DaskBackend
