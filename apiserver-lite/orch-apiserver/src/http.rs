//! HTTP: connections, routing, content negotiation, bodies and streams. The verbs themselves are in `crate::verbs`.

mod body;
mod compress;
mod dispatch;
mod handler;
mod labels;
mod negotiate;
mod node_proxy;
mod overload;
mod render;
mod routes;
mod serve;
mod upgrade;
mod watch;
mod websocket;

pub use body::{BoxError, ResponseBody, full};
pub use compress::{is_accepted as accepts_gzip, response as large_response};
pub use handler::{Peer, bytes_response, handle, set_type};
pub use labels::Labels;
pub use node_proxy::{NodeProxy, NodeProxyError};
pub use overload::Overload;
pub use routes::Target;
pub use serve::serve;
pub use watch::WatchBatches;
