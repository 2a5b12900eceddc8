//! io: a session of the command-line client with a server: flags ([`GlobalFlags`]), client configuration ([`Kubeconfig`]), requests ([`Session`]), what the
//! server serves ([`discovery`]), which objects a command line names ([`names`]) and objects from files ([`manifests`]).

mod authorities;
mod command_headers;
pub mod discovery;
mod error;
mod exec_credential;
mod fetch;
mod flags;
mod impersonation;
mod kubeconfig;
mod lines;
pub mod manifests;
pub mod names;
mod output;
mod path_pattern;
mod proxies;
mod raw_path;
mod retries;
mod session;

pub use discovery::{ApiResource, ServerResources};
pub use error::CommandError;
pub use flags::{GlobalFlags, ServerFlags, UserFlags};
pub use kubeconfig::{Kubeconfig, Overrides};
pub use lines::LineReader;
pub use output::{Output, VisibleText};
pub use raw_path::check_raw_path;
pub use session::Session;
