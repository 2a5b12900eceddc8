//! io: an API server of its own for each test, in the test's process. It keeps everything in memory and has neither port nor file until a test asks for a
//! kubeconfig.
//!
//! ```
//! use apiserver_testing::Cluster;
//! use proto_api::core::v1::ConfigMap;
//! use proto_client::{Api, WriteParams};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a test: #[tokio::test] async fn a_map_is_put_back() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::start().await?;
//! let maps: Api<ConfigMap> = cluster.client()?.within("default");
//! let mut map = ConfigMap::default();
//! map.metadata.name = "a".to_owned();
//! maps.create(&map, &WriteParams::default()).await?;
//! cluster.save("with-a").await?;
//!
//! maps.delete("a", &Default::default()).await?;
//! cluster.restore("with-a").await?; // everything is as it was saved, and watches start again
//! assert!(maps.get("a").await.is_ok());
//!
//! // For clients of another kind: a listener on loopback, and how it is reached.
//! let kubeconfig = cluster.kubeconfig().await?;
//! assert!(kubeconfig.contains("server: https://127.0.0.1:"));
//! cluster.stop().await;
//! # Ok(())
//! # }
//! ```

mod cluster;

pub use apiserver_auth::User;
pub use cluster::{Cluster, ClusterError};
pub use orch_apiserver::Config;
