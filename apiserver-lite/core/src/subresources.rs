//! Subresources with a behaviour of their own.

pub mod binding;
pub mod connect;
pub mod eviction;
pub mod logs;
pub mod reviews;
pub mod scale;
pub mod token;
