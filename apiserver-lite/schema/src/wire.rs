//! Protobuf encoding by descriptor, byte for byte as Kubernetes' generated code: fields in ascending number, plain fields always,
//! optional ones when set, map entries sorted by key with key and value, nothing packed.

mod decode;
mod encode;
mod reader;

pub use decode::WireError;
pub(crate) use decode::decode_message;
pub(crate) use encode::{encode_message, put_bytes, put_key, put_len, put_varint};
pub(crate) use reader::{Reader, WireValue};
