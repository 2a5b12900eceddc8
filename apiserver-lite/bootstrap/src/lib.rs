//! io: what makes a cluster, for `orchadm` and for `hack/up`: there is one way to make one.
//!
//! - [`authority`], [`certificates`], [`service_account_keys`], [`encryption`]: files of keys and certificates: made, checked, renewed.
//! - [`client_config`]: client configurations.
//! - [`access`], [`bootstrap_token`], [`cluster_info`]: what a machine needs that joins, as objects of the API; [`apply`] writes them.
//! - [`arguments`]: the arguments of the programs; [`units`]: their systemd units.
//! - [`configuration`]: the configuration kinds of orchadm; [`layout`]: where everything lies on a host.
//! - [`preflight`]: what is wrong with a host, by its [`host_facts`]; [`record`]: what was done on it; [`removal`], [`pod_cgroups`]: what goes again.
//! - [`systemd`]: programs that it runs; [`processes`], [`supervise`]: programs that are kept running without it; [`external`]: programs that end.
//!
//! What is decided (a certificate's subject, an argument, a unit's text) is a value; the few functions that write files decide nothing.

pub mod access;
pub mod apply;
pub mod arguments;
pub mod authority;
pub mod bootstrap_token;
pub mod certificates;
pub mod client_config;
pub mod cluster_info;
pub mod configuration;
pub mod encryption;
pub mod error;
pub mod external;
pub mod host_facts;
pub mod layout;
pub mod pod_cgroups;
pub mod preflight;
pub mod processes;
pub mod record;
pub mod removal;
pub mod service_account_keys;
pub mod supervise;
mod sys;
pub mod systemd;
pub mod units;
