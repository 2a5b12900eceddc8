//! io: certificates that the agent requests from the API server: its client and its serving
//! certificate. A key is created once and kept on disk until its certificate is issued, so that
//! retries and restarts reuse the request. A certificate takes effect when its link is switched,
//! and is then reloaded by its users.
//!
//! ```text
//!   store ── key ──► wanted (pure) ── request ──► API server ── approved, signed ──► store ── link ──► client, endpoint
//!                      ▲                                                               │
//!                      └────────────── at 70 to 90 % of its life ──────────────────────┘
//! ```

pub mod certificate_spec;
pub mod issue;
mod keeper;
pub mod store;
mod unix_time;

pub use keeper::CertificateRenewer;
pub use unix_time::unix_now;
