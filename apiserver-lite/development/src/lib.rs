//! io: what an API server has for development only: manifests that it loads at its start ([`manifests`], [`load`]), and what test harnesses expect that
//! start the programs of Kubernetes from a directory: their names and arguments ([`assets`], [`kube_apiserver`]) and a stand-in for etcd ([`etcd`]).

pub mod assets;
pub mod etcd;
pub mod kube_apiserver;
pub mod load;
pub mod manifests;
