//! io: a cluster of Docker nodes for a project's tests. It is made by `hack/dind`, and removed when the value is dropped.
//!
//! ```no_run
//! use docker_cluster::DockerCluster;
//!
//! # fn main() -> Result<(), docker_cluster::ClusterError> {
//! let cluster = DockerCluster::create("my-test").nodes(3).start()?;
//! cluster.load("my-app:1")?; // an image of Docker's, on every node
//! let client_config = cluster.kubeconfig(); // for any client
//! println!("KUBECONFIG={}", client_config.display());
//!
//! cluster.restart(&cluster.nodes()?[1])?; // a machine that is switched off and on
//! # Ok(())
//! # }
//! ```
//!
//! Calls wait for programs that they run: an asynchronous test calls them on a thread for that.

mod cluster;

pub use cluster::{ClusterError, DockerCluster, Plan};
