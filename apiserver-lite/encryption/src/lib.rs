//! io: encryption of objects at rest, by an `EncryptionConfiguration` as kube-apiserver reads it with `--encryption-provider-config`.
//!
//! ```text
//!   file ─▶ configuration  (fields, faults with their paths)
//!              │
//!              ▼
//!            rules         (pure: which keys write and read the objects of a resource)
//!              │  envelope (pure: `k8s:enc:aesgcm:v1:<key>:` in front of nonce and text)
//!              ▼
//!          encryption      (a store's Transform: draws nonces, takes over a changed file)
//! ```
//!
//! The first key of the first provider writes; every one reads. The object's key in the store is authenticated with its text, so that a value cannot be
//! put in another object's place. No error and no log line has a key or a text of an object in it.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod aes_gcm;
mod configuration;
mod encryption;
mod envelope;
mod rules;

pub use encryption::{Encryption, Reload};
pub use envelope::is_encrypted;
pub use rules::StoredResource;
