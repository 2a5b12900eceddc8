//! Tokens of service accounts: the keys that sign them, their compact form, and the claims of those that lie in secrets.
//! The API server makes and believes bound tokens; the controller manager makes those that live as long as their secret.

pub mod jwt;
mod keys;
mod legacy_token;

pub use keys::{KeyError, PublicKey, SigningKey};
pub use legacy_token::LegacyToken;
