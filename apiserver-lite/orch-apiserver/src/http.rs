//! HTTP: connections, routes, negotiation, bodies, streams. What a request means is decided in `verbs`.

mod body;
mod compress;
mod dispatch;
mod handler;
mod labels;
mod negotiate;
mod node_proxy;
mod overload;
mod query;
mod render;
mod routes;
mod serve;
mod upgrade;
mod watch;
mod websocket;

pub use body::{BODY_LEN_MAX, BoxError, ResponseBody, full};
pub use compress::{is_accepted as accepts_gzip, response as large_response};
pub use handler::{Peer, bytes_response, handle, set_type};
pub use labels::Labels;
pub use negotiate::{Accepted, Encoding, Form};
pub use node_proxy::{NodeProxy, NodeProxyError};
pub use overload::Overload;
pub use query::{Query, decode as decode_percent};
pub use routes::{ResourceRequest, Target, Verb};
pub use serve::serve;
pub use watch::WatchBatches;
