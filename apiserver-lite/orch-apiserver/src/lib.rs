//! bin: the API server. `apiserver_core` decides over `apiserver_schema`'s rules and `apiserver_store`'s objects, `apiserver_http`
//! serves it; this program reads flags and files, makes certificates, opens the store and keeps it small.
//!
//! ```text
//!  TLS ─▶ http: serve ─▶ handler ─▶ dispatch ─▶ core: verbs ─▶ admission, registry ─▶ store
//!                         │ authn, authz             │                                 │
//!                         ▼                          ▼                                 ▼
//!                       status            http: render ◀──── shared bytes ◀──── core: record
//! ```
//!
//! [`build`] builds a server from a [`Config`] and returns it with its listener bound; `main.rs` and tests both use it.

mod admission_config;
pub mod app;
mod audit_policy;
mod bootstrap;
mod build_error;
mod certificate_files;
mod encryption;
pub mod flags;
mod kubeconfig;
mod maintenance;
mod pki;
pub mod reference;
mod restore;
mod running_server;
mod shared_store;
mod tls;

pub use apiserver_core::config::{self, Config};
pub use app::{BoundServer, begin, build};
pub use build_error::BuildError;
pub use restore::restore;
pub use running_server::RunningServer;
