//! io: connections with containers, over an upgraded connection that the caller brings.
//!
//! - [`spdy`]: streams of one SPDY/3.1 connection, as container runtimes serve them. Other than WebSockets of the runtimes in use, its streams end in one
//!   direction: a command sees the end of its input.
//! - [`exec`]: a command in a container, or its main process: input, outputs, size of the terminal, exit code.
//! - [`forward`]: one connection to a port of a pod. [`archive`]: trees of files as tar. [`terminal`]: the user's own terminal.

pub mod archive;
pub mod exec;
pub mod forward;
pub mod spdy;
mod stream_error;
pub mod terminal;

pub use stream_error::StreamError;
