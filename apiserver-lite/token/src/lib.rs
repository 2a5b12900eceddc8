//! io: service account tokens: keys, JWTs, and the claims of legacy tokens in Secrets. The API server issues and verifies bound
//! tokens; the controller manager issues legacy tokens.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod algorithm;
pub mod der;
mod es512;
pub mod jwt;
mod keys;
mod legacy_token;

pub use algorithm::Algorithm;
pub use keys::{KeyError, PublicKey, SigningKey, pkcs8_from_pem};
pub use legacy_token::LegacyToken;
