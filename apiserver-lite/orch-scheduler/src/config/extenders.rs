//! `extenders` of the configuration file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use apiserver_scheduling::extenders::{Extender, ExtenderVerbs};
use apiserver_scheduling::profile::WEIGHT_MAX;
use http::Uri;
use proto_client::config::{ClientConfig, Identity, Pem, TlsSettings, Verification};
use proto_daemon::config::FieldError;
use proto_daemon::go_duration;
use serde::{Deserialize, Serialize};

/// Most extenders: each pod waits for all of them.
const EXTENDERS_MAX: usize = 16;
/// How long an extender has for an answer unless the file says it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that can be set: all pods wait meanwhile.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);

/// An extender, and how it is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtenderSettings {
    pub extender: Extender,
    pub server: ClientConfig,
    /// How long it has for an answer.
    pub timeout: Duration,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FileExtender {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: Tls,
    #[serde(with = "go_duration::text")]
    pub http_timeout: Duration,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    pub ignorable: bool,
}

impl Default for FileExtender {
    fn default() -> Self {
        Self {
            url_prefix: String::new(),
            filter_verb: String::new(),
            preempt_verb: String::new(),
            prioritize_verb: String::new(),
            weight: 0,
            bind_verb: String::new(),
            enable_https: false,
            tls_config: Tls::default(),
            http_timeout: TIMEOUT,
            node_cache_capable: false,
            managed_resources: Vec::new(),
            ignorable: false,
        }
    }
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Tls {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ManagedResource {
    pub name: String,
    pub ignored_by_scheduler: bool,
}

/// Every fault of the extenders.
pub(super) fn find_faults(extenders: &[FileExtender]) -> Vec<FieldError> {
    let mut faults = Vec::new();
    if extenders.len() > EXTENDERS_MAX {
        faults.push(FieldError::new("extenders", format!("must be at most {EXTENDERS_MAX}")));
    }
    if extenders.iter().filter(|of| !of.bind_verb.is_empty()).count() > 1 {
        faults.push(FieldError::new("extenders", "only one extender can implement bind"));
    }
    let mut managed = BTreeSet::new();
    for (nth, extender) in extenders.iter().enumerate() {
        let mut add = |field: &str, why: String| {
            faults.push(FieldError::new(format!("extenders[{nth}].{field}"), why));
        };
        if let Err(why) = server_of(extender) {
            let (field, why) = why;
            add(field, why.to_owned());
        }
        if !extender.prioritize_verb.is_empty() && !(1..=WEIGHT_MAX).contains(&extender.weight) {
            add("weight", format!("must be between 1 and {WEIGHT_MAX}"));
        }
        if extender.http_timeout > TIMEOUT_MAX {
            add("httpTimeout", format!("must be at most {}s", TIMEOUT_MAX.as_secs()));
        }
        for resource in &extender.managed_resources {
            let name = &resource.name;
            if !name.contains('/') {
                add("managedResources", format!("{name:?} is no extended resource"));
            } else if !managed.insert(name) {
                add("managedResources", format!("{name:?} is managed by another entry"));
            }
        }
    }
    faults
}

/// The extenders of a valid file.
pub(super) fn select_extenders(extenders: &[FileExtender]) -> Vec<ExtenderSettings> {
    let settings = |of: &FileExtender| {
        let verb = |verb: &String| verb.trim_matches('/').to_owned();
        let extender = Extender {
            url: of.url_prefix.clone(),
            verbs: ExtenderVerbs {
                filter: verb(&of.filter_verb),
                prioritize: verb(&of.prioritize_verb),
                preempt: verb(&of.preempt_verb),
                bind: verb(&of.bind_verb),
            },
            weight: of.weight,
            node_cache_capable: of.node_cache_capable,
            managed_resources: of.managed_resources.iter().map(|of| of.name.clone()).collect(),
            is_ignorable: of.ignorable,
        };
        // As in kube-scheduler, zero is the default.
        let timeout = if of.http_timeout.is_zero() { TIMEOUT } else { of.http_timeout };
        Some(ExtenderSettings { extender, server: server_of(of).ok()?, timeout })
    };
    let mut all: Vec<_> = extenders.iter().filter_map(settings).collect();
    // As in kube-scheduler: what may be skipped is asked after what decides.
    all.sort_by_key(|of| of.extender.is_ignorable);
    all
}

/// The resources that extenders check in the place of the scheduler.
pub(super) fn ignored_resources(extenders: &[FileExtender]) -> impl Iterator<Item = &String> {
    let managed = extenders.iter().flat_map(|extender| &extender.managed_resources);
    managed.filter(|resource| resource.ignored_by_scheduler).map(|resource| &resource.name)
}

/// A warning for each extender whose certificate is not verified although the file does not ask for that.
pub(super) fn list_warnings(extenders: &[FileExtender]) -> impl Iterator<Item = String> {
    let unverified = extenders.iter().enumerate().filter(|(_, of)| is_unverified(of));
    unverified.map(|(nth, _)| {
        format!("extenders[{nth}]: the certificate of the extender is not verified: enableHTTPS is set without caFile or caData")
    })
}

/// As in kube-scheduler.
fn is_unverified(extender: &FileExtender) -> bool {
    let Tls { insecure, ca_file, ca_data, .. } = &extender.tls_config;
    extender.enable_https && !insecure && ca_file.is_empty() && ca_data.is_empty()
}

/// How an extender is reached.
///
/// # Errors
/// The faulty field, and why.
fn server_of(of: &FileExtender) -> Result<ClientConfig, (&'static str, &'static str)> {
    let server: Uri =
        of.url_prefix.parse().map_err(|_| ("urlPrefix", "must be an http or https URL"))?;
    if !matches!(server.scheme_str(), Some("http" | "https")) || server.authority().is_none() {
        return Err(("urlPrefix", "must be an http or https URL"));
    }
    let tls = &of.tls_config;
    let pem = |file: &String, data: &String, field| match (file.as_str(), data.as_str()) {
        ("", "") => Ok(None),
        (file, "") => Ok(Some(Pem::File(PathBuf::from(file)))),
        (_, data) => {
            let decoded = proto_client::config::file::decoded(data);
            decoded.map(|data| Some(Pem::Data(data))).ok_or((field, "is not base64"))
        }
    };
    let authority = pem(&tls.ca_file, &tls.ca_data, "tlsConfig.caData")?;
    let certificate = pem(&tls.cert_file, &tls.cert_data, "tlsConfig.certData")?;
    let key = pem(&tls.key_file, &tls.key_data, "tlsConfig.keyData")?;
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        (None, None) => None,
        _ => return Err(("tlsConfig", "a certificate and its key are set together")),
    };
    if tls.insecure && authority.is_some() {
        return Err(("tlsConfig.insecure", "must not be set beside caFile or caData"));
    }
    let is_skipped = tls.insecure || is_unverified(of);
    let verification = if is_skipped { Verification::Skipped } else { Verification::Full };
    let server_name = Some(tls.server_name.clone()).filter(|name| !name.is_empty());
    let tls = TlsSettings { authority, identity, server_name, verification };
    Ok(ClientConfig { tls, ..ClientConfig::direct(server) })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HEAD, read};
    use super::*;

    #[test]
    fn extenders_are_read_with_their_defaults() {
        let text = format!(
            "{HEAD}extenders:\n- urlPrefix: http://127.0.0.1:8888/scheduler/\n  filterVerb: filter\n  prioritizeVerb: /prioritize\n  weight: 5\n  \
             nodeCacheCapable: true\n  managedResources: [{{name: example.org/fpga, ignoredByScheduler: true}}, {{name: example.org/nic}}]\n- \
             urlPrefix: https://extender.example\n  bindVerb: bind\n  enableHTTPS: true\n  httpTimeout: 1500ms\n  ignorable: true\n"
        );
        let fields = read(&text).unwrap();
        let [first, second] = &fields.extenders[..] else { panic!("{:?}", fields.extenders) };
        assert_eq!(
            (&*first.extender.verbs.filter, &*first.extender.verbs.prioritize),
            ("filter", "prioritize")
        );
        assert_eq!((first.extender.weight, first.timeout), (5, TIMEOUT));
        assert!(first.extender.node_cache_capable && !first.extender.is_ignorable);
        assert_eq!(first.extender.managed_resources.len(), 2);
        assert_eq!(first.server.tls.verification, Verification::Full);
        assert_eq!(
            (&*second.extender.verbs.bind, second.timeout),
            ("bind", Duration::from_millis(1500))
        );
        assert_eq!(second.server.tls.verification, Verification::Skipped);
        let order = format!(
            "{HEAD}extenders: [{{urlPrefix: 'http://e', ignorable: true}}, {{urlPrefix: 'http://f'}}]\n"
        );
        let order = read(&order).unwrap().extenders;
        assert_eq!(order[0].extender.url, "http://f", "what decides is asked first");
        let ignored = &fields.profiles[0].fit.ignored_resources;
        assert_eq!(ignored.iter().collect::<Vec<_>>(), ["example.org/fpga"]);
        assert_eq!(fields.warnings.len(), 1, "{:?}", fields.warnings);
        assert!(fields.warnings[0].contains("extenders[1]: the certificate"));
    }

    #[test]
    fn invalid_extenders_are_rejected() {
        for (extenders, why) in [
            ("{urlPrefix: extender}", "extenders[0].urlPrefix: must be an http or https URL"),
            ("{filterVerb: f}", "extenders[0].urlPrefix"),
            (
                "{urlPrefix: 'http://e', prioritizeVerb: p}",
                "extenders[0].weight: must be between 1",
            ),
            (
                "{urlPrefix: 'http://e', bindVerb: b}, {urlPrefix: 'http://f', bindVerb: b}",
                "extenders: only one extender can implement bind",
            ),
            (
                "{urlPrefix: 'http://e', httpTimeout: 1h}",
                "extenders[0].httpTimeout: must be at most 300s",
            ),
            (
                "{urlPrefix: 'http://e', managedResources: [{name: cpu}]}",
                "extenders[0].managedResources: \"cpu\" is no extended resource",
            ),
            (
                "{urlPrefix: 'http://e', managedResources: [{name: a/b}, {name: a/b}]}",
                "is managed by another entry",
            ),
            (
                "{urlPrefix: 'https://e', tlsConfig: {caData: '*'}}",
                "extenders[0].tlsConfig.caData: is not base64",
            ),
            (
                "{urlPrefix: 'https://e', tlsConfig: {certFile: /c}}",
                "extenders[0].tlsConfig: a certificate and its key",
            ),
            (
                "{urlPrefix: 'https://e', tlsConfig: {insecure: true, caFile: /c}}",
                "extenders[0].tlsConfig.insecure",
            ),
        ] {
            let error = read(&format!("{HEAD}extenders: [{extenders}]\n")).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let many = vec!["{urlPrefix: 'http://e'}"; EXTENDERS_MAX + 1].join(", ");
        let error = read(&format!("{HEAD}extenders: [{many}]\n")).unwrap_err();
        assert!(error.contains("extenders: must be at most 16"), "{error}");
    }
}
