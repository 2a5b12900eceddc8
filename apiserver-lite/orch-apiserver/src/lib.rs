//! bin: the API server. REST over the object engine (`apiserver-schema`) and the revisioned store (`apiserver-store`).
//!
//! ```text
//!  TLS ─▶ http::serve ─▶ http::handler ─▶ http::dispatch ─▶ verbs ─▶ admission, registry ─▶ store
//!                          │ authn, authz                     │                               │
//!                          ▼                                  ▼                               ▼
//!                        status                         http::render ◀──── shared bytes ◀── record
//! ```
//!
//! [`build`] builds a server from a [`Config`] and returns it with its listener bound; `main.rs` and tests both use it.

pub mod admission;
pub mod app;
pub mod auth;
mod bootstrap;
pub mod config;
mod discovery;
pub mod flags;
pub mod http;
mod key;
mod kubeconfig;
mod maintenance;
mod metrics;
mod pki;
mod record;
pub mod registry;
pub mod request;
mod server;
pub mod status;
mod tls;
pub mod verbs;

pub use app::{BoundServer, BuildError, build};
pub use config::Config;
