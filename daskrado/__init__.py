"""Differentially private linear classifiers learned from Parquet lakes on Dask."""

__version__ = "0.1.0"
