//! io: configuration: a file with KubeletConfiguration's fields ([`file`]), overridden by the kubelet's
//! flags ([`flags`]), validated together ([`validate`]).

pub mod file;
pub mod flags;
pub mod gates;
pub mod node;
mod reference;
mod settings;
mod validate;

pub use file::{FileConfig, Mode};
pub use flags::Flags;
pub use reference::describe;
pub use settings::Settings;
pub use validate::log_size;
