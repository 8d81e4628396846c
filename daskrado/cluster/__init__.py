"""Where tasks run: in this process, on local workers, on a batch system, or on a scheduler that is already there."""

from daskrado.cluster.config import ClusterConfig, SlurmConfig, cluster_config, is_cluster
from daskrado.cluster.connect import connect

__all__ = ["ClusterConfig", "SlurmConfig", "cluster_config", "connect", "is_cluster"]
