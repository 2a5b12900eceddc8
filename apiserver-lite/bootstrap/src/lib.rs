//! io: what makes a cluster, for `orchadm` and for `hack/up`: there is one way to make one.
//!
//! - [`authority`], [`certificates`], [`renewal`], [`service_account_keys`], [`encryption`]: files of keys and certificates: made, checked, renewed.
//! - [`client_config`]: client configurations.
//! - [`access`], [`bootstrap_token`], [`cluster_info`]: what a machine needs that joins, as objects of the API; [`apply`] writes them, [`discovery`]
//!   finds them.
//! - [`arguments`], [`host_programs`]: the arguments of the programs; [`units`]: their systemd units; [`dry_run`]: what would be written and run.
//! - [`configuration`]: the configuration kinds of orchadm; [`layout`]: where everything lies on a host; [`external_etcd`], [`etcd_probe`]: an etcd that
//!   others run, and whether it can be used.
//! - [`preflight`]: what is wrong with a host, by its [`host_facts`]; [`record`], [`resumed_join`]: what was done on it; [`host_lock`]: who changes it now;
//!   [`reset`], [`removal`], [`pod_cgroups`]: what goes again.
//! - [`services`]: the programs, run by [`systemd`], or [`processes`], [`supervise`] and [`supervisor`] without it; [`upgrade`]: other programs
//!   in their place; [`external`]: programs that end; [`program_log`]: what they said last.
//! - [`waiting`]: for what comes in its own time; [`node_health`]: whether a node agent is well.
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
pub mod discovery;
pub mod dry_run;
pub mod encryption;
pub mod error;
pub mod etcd_probe;
pub mod external;
pub mod external_etcd;
pub mod host_facts;
pub mod host_lock;
pub mod host_programs;
pub mod layout;
pub mod links;
pub mod node_health;
pub mod pod_cgroups;
pub mod poll_until;
pub mod preflight;
pub mod processes;
pub mod program_log;
pub mod record;
pub mod removal;
pub mod renewal;
pub mod reset;
pub mod resumed_join;
pub mod service_account_keys;
pub mod services;
pub mod supervise;
pub mod supervisor;
mod sys;
pub mod systemd;
pub mod units;
pub mod upgrade;
pub mod versions;
