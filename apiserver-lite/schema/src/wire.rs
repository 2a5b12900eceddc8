//! Objects to Protobuf and back, by descriptor, to the byte as Kubernetes' generated code writes them:
//! fields in ascending number, plain fields always, optional ones when set, maps sorted by key with both halves, nothing packed.

mod decode;
mod encode;
mod reader;

pub use decode::WireError;
pub(crate) use decode::decode_message;
pub(crate) use encode::{encode_message, put_bytes, put_key, put_varint};
pub(crate) use reader::{Reader, WireValue};
