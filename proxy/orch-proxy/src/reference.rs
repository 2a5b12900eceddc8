//! What the program's reference has besides flags: the fields of the configuration file, with the flags that override them, and the metrics of both modes.

use std::collections::BTreeMap;

use clap::{CommandFactory as _, Parser as _};
use proto_api::names::{Names, Profile};
use proto_client::metrics::RequestMetrics;
use proto_daemon::exit::Failure;
use proto_daemon::reference::{FieldReference, FileReference, Reference};
use proxy_nameserver::NameMetrics;
use proxy_sync::counters::ServiceCounters;
use proxy_sync::metrics::ProxyMetrics;
use proxy_userspace::ForwardMetrics;

use crate::config::file::{ProxyConfiguration, WITHOUT_EFFECT};
use crate::config::{file_type, overridden};
use crate::flags::Flags;
use crate::health_metrics::HealthMetrics;

/// Values one of which each flag takes, and that are no field's default.
const SAMPLES: [&str; 7] = ["true", "false", "7", "7s", "10.7.0.0/16", "10.7.0.7", "A=true"];

/// Adds them.
///
/// # Errors
/// A metric cannot be registered.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    let mut file = file(&ProxyConfiguration::default())?;
    let flags = overriding(&file.fields)?;
    let unused = |path: &str| WITHOUT_EFFECT.contains(&path);
    let without_effect = |path: &str| unused(path).then_some("accepted for existing files");
    file.note(|path| flags.get(path).cloned(), without_effect);
    reference.file = Some(file);
    reference.mark_without_effect(&["show-hidden-metrics-for-version"]);
    reference.add_metrics("proxy", |metrics, names| {
        let prefix = names.metric_prefix("proxy");
        ProxyMetrics::register(metrics, &prefix)?;
        RequestMetrics::register(metrics)?;
        NameMetrics::register(metrics, &prefix)?;
        HealthMetrics::register(metrics, &prefix)?;
        ServiceCounters::register(metrics, &prefix)?;
        ForwardMetrics::register(metrics, &prefix).map(drop)
    })
}

fn file(defaults: &ProxyConfiguration) -> Result<FileReference, Failure> {
    FileReference::new(file_type(Names::new(Profile::Kubernetes)), defaults)
}

/// The flag of each field that one changes, found out by giving each flag a value.
fn overriding(defaults: &[FieldReference]) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    let command = Flags::command();
    for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
        for sample in SAMPLES {
            let argument = format!("--{flag}={sample}");
            let Ok(flags) = Flags::try_parse_from(["orch-proxy", &argument]) else { continue };
            let changed = file(&overridden(ProxyConfiguration::default(), &flags))?.fields;
            let differs = |field: &&FieldReference| !defaults.contains(field);
            if let Some(field) = changed.iter().find(differs) {
                // `featureGates` has its entries as fields once there are some.
                let path = match defaults.iter().any(|of| of.path == field.path) {
                    true => field.path.as_str(),
                    false => field.path.rsplit_once('.').map_or("", |(path, _)| path),
                };
                found.insert(path.to_owned(), flag.to_owned());
                break;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_flags_and_those_without_effect_have_none() {
        let mut reference = Reference::new("1", Flags::command());
        describe(&mut reference).unwrap();
        let fields = reference.file.unwrap().fields;
        let of = |path: &str| fields.iter().find(|field| field.path == path).expect(path);
        for (path, flag) in [
            ("clusterCIDR", "cluster-cidr"),
            ("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established"),
            ("dataplane.serviceCounters", "service-counters"),
            ("dns.enabled", "dns"),
            ("featureGates", "feature-gates"),
            ("nodePortAddresses", "node-port-addresses"),
        ] {
            assert_eq!(of(path).flag.as_deref(), Some(flag), "{path}");
        }
        for path in WITHOUT_EFFECT.iter().filter(|path| **path != "showHiddenMetricsForVersion") {
            assert_eq!(
                (&of(path).flag, of(path).without_effect.is_some()),
                (&None, true),
                "{path}"
            );
        }
    }
}
