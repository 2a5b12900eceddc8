//! io: a typed client of the API. Requests and the steps of watches are decided by pure code ([`request`], [`watch::machine`]); one connection carries them
//! all ([`transport`]).
//!
//! - [`Client`]: one server, one connection, one identity. Clones share them; a heartbeat has a separate client.
//! - [`Api`]: the verbs for one kind. [`dynamic::Dynamic`]: the same for kinds known only at run time.
//! - [`watch`]: the objects of a collection and their changes, resumed after errors; [`reflector`]: the same as a shared map.
//! - [`lease`], [`election`], [`events`], [`serving`]: what components build on them.

pub mod api;
pub mod config;
pub mod dynamic;
pub mod election;
pub mod error;
pub mod events;
pub mod leader_program;
pub mod lease;
pub mod metrics;
pub mod params;
pub mod reflector;
pub mod reloading_file;
pub mod request;
pub mod served_resources;
pub mod serving;
pub mod shared_token;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;
pub mod userinfo;
pub mod watch;

mod client;
mod content;

pub use api::Api;
pub use client::{Answer, Client};
pub use config::ClientConfig;
pub use error::ClientError;
pub use params::{DeleteParams, ListParams, Patch, WriteParams};
pub use reflector::{Change, Reflector, Store};
pub use served_resources::ServedResources;
pub use shared_token::SharedToken;
pub use transport::ResponseBody;
