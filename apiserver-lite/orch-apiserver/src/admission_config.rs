//! The file of `--admission-control-config-file`: which plugin is configured how, and what it says of PodSecurity. Read strictly: one error names every fault.

use std::path::Path;

use apiserver_core::config::PodSecuritySettings;
use apiserver_pod_security::{Exemptions, LevelVersion, NamespacePolicy};
use apiserver_schema::validate::names::{dns_label, dns_subdomain};
use proto_api::names::Names;
use proto_daemon::config::{ConfigError, Configuration, FieldError, FileType, load, parse};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The one plugin that has a configuration here.
const POD_SECURITY: &str = "PodSecurity";

/// Reads the file, and the file that it names.
///
/// # Errors
/// A file that cannot be read, or whose content is another kind or has faults.
pub fn read(path: &Path, names: &Names) -> Result<PodSecuritySettings, ConfigError> {
    let domain = names.group_domain();
    let file_type = |group: &str, version: &str, kind: &str| FileType {
        api_version: format!("{group}.{domain}/{version}"),
        kind: kind.to_owned(),
    };
    let admission = file_type("apiserver.config", "v1", "AdmissionConfiguration");
    let file: AdmissionFile = load(path, &[admission])?;
    let Some(plugin) = file.plugins.first() else { return Ok(PodSecuritySettings::default()) };
    let accepted = ["v1", "v1beta1"].map(|version| {
        file_type("pod-security.admission.config", version, "PodSecurityConfiguration")
    });
    // What is embedded is in place of a file, as in Kubernetes.
    let read: PodSecurityFile = if plugin.configuration.is_null() {
        let beside = path.parent().unwrap_or(Path::new("."));
        load(&beside.join(&plugin.path), &accepted)?
    } else {
        parse(path, &plugin.configuration.to_string(), &accepted)?
    };
    Ok(read.settings())
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct AdmissionFile {
    plugins: Vec<PluginConfiguration>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PluginConfiguration {
    name: String,
    path: String,
    configuration: Value,
}

impl Configuration for AdmissionFile {
    fn validate(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        for (nth, plugin) in self.plugins.iter().enumerate() {
            let mut fault = |field: &str, why: String| {
                faults.push(FieldError::new(format!("plugins[{nth}].{field}"), why));
            };
            if plugin.name != POD_SECURITY {
                let name = &plugin.name;
                fault("name", format!("{name:?} has no configuration here, only {POD_SECURITY}"));
            } else if nth > 0 {
                fault("name", format!("{POD_SECURITY} is configured twice"));
            }
            if plugin.configuration.is_null() && plugin.path.is_empty() {
                fault("configuration", "expected a configuration or the path of one".to_owned());
            }
        }
        faults
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodSecurityFile {
    defaults: Defaults,
    exemptions: ExemptionsFile,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Defaults {
    enforce: String,
    enforce_version: String,
    audit: String,
    audit_version: String,
    warn: String,
    warn_version: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExemptionsFile {
    usernames: Vec<String>,
    runtime_classes: Vec<String>,
    namespaces: Vec<String>,
}

impl PodSecurityFile {
    /// What a valid file says.
    fn settings(self) -> PodSecuritySettings {
        let Self { defaults, exemptions } = self;
        let level = |level: &str, version: &str| LevelVersion {
            level: level.parse().unwrap_or_default(),
            version: version.parse().unwrap_or_default(),
        };
        let of = &defaults;
        PodSecuritySettings {
            defaults: NamespacePolicy {
                enforce: level(&of.enforce, &of.enforce_version),
                audit: level(&of.audit, &of.audit_version),
                warn: level(&of.warn, &of.warn_version),
            },
            exemptions: Exemptions {
                usernames: exemptions.usernames,
                runtime_classes: exemptions.runtime_classes,
                namespaces: exemptions.namespaces,
            },
        }
    }
}

impl Configuration for PodSecurityFile {
    fn validate(&self) -> Vec<FieldError> {
        let of = &self.defaults;
        let mut faults = Vec::new();
        for (mode, level, version) in [
            ("enforce", &of.enforce, &of.enforce_version),
            ("audit", &of.audit, &of.audit_version),
            ("warn", &of.warn, &of.warn_version),
        ] {
            let mut check = |field: String, value: &str, error: Option<String>| {
                if let (false, Some(error)) = (value.is_empty(), error) {
                    faults.push(FieldError::new(
                        format!("defaults.{field}"),
                        format!("invalid value {value:?}: {error}"),
                    ));
                }
            };
            let parsed = level.parse::<apiserver_pod_security::PodSecurityLevel>();
            check(mode.to_owned(), level, parsed.err().map(|error| error.to_string()));
            let parsed = version.parse::<apiserver_pod_security::PodSecurityVersion>();
            let error = parsed.err().map(|error| error.to_string());
            check(format!("{mode}-version"), version, error);
        }
        let not_empty = |name: &str| match name {
            "" => vec!["must not be empty".to_owned()],
            _ => Vec::new(),
        };
        let exempt = &self.exemptions;
        faults.extend(check_names("usernames", &exempt.usernames, not_empty));
        faults.extend(check_names("runtimeClasses", &exempt.runtime_classes, dns_subdomain));
        faults.extend(check_names("namespaces", &exempt.namespaces, dns_label));
        faults
    }
}

fn check_names(
    list: &str,
    names: &[String],
    problems: impl Fn(&str) -> Vec<String>,
) -> Vec<FieldError> {
    let check = |(nth, name): (usize, &String)| {
        let wrong = problems(name);
        let why = if !wrong.is_empty() {
            format!("invalid value {name:?}: {}", wrong.join(", "))
        } else if names.iter().take(nth).any(|earlier| earlier == name) {
            format!("duplicate value {name:?}")
        } else {
            return None;
        };
        Some(FieldError::new(format!("exemptions.{list}[{nth}]"), why))
    };
    names.iter().enumerate().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use proto_daemon::exit::chain;

    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    /// Reads files, the first of which is named by the flag.
    fn read_files(files: &[(&str, &str)]) -> Result<PodSecuritySettings, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let read = read(&dir.path().join(files[0].0), Names::new(Profile::Kubernetes));
        let dir = format!("{}/", dir.path().display());
        read.map_err(|error| chain(&error).replace(&dir, ""))
    }

    /// Reads a PodSecurityConfiguration that is embedded.
    fn embedded(version: &str, content: &str) -> Result<PodSecuritySettings, String> {
        let body = content.replace('\n', "\n    ");
        let file = format!(
            "{HEAD}plugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/{version}\n    kind: PodSecurityConfiguration\n    {body}\n"
        );
        read_files(&[("admission.yaml", &file)])
    }

    const FULL: &str = "defaults:
  enforce: baseline
  enforce-version: v1.24
  warn: restricted
exemptions:
  usernames: [\"system:serviceaccount:a:b\", jane]
  runtimeClasses: [kata]
  namespaces: [kube-system]";

    #[test]
    fn a_configuration_is_read_embedded_and_from_a_file_beside() {
        let expected = embedded("v1", FULL).unwrap();
        let level = |text: &str| {
            let (level, version) = text.split_once(':').unwrap();
            LevelVersion { level: level.parse().unwrap(), version: version.parse().unwrap() }
        };
        assert_eq!(expected.defaults.enforce, level("baseline:v1.24"));
        assert_eq!(expected.defaults.audit, level("privileged:latest"));
        assert_eq!(expected.defaults.warn, level("restricted:latest"));
        assert_eq!(expected.exemptions.usernames, ["system:serviceaccount:a:b", "jane"]);
        assert_eq!(expected.exemptions.runtime_classes, ["kata"]);
        assert_eq!(expected.exemptions.namespaces, ["kube-system"]);
        assert_eq!(embedded("v1beta1", FULL).as_ref(), Ok(&expected));

        let named = format!("{HEAD}plugins: [{{name: PodSecurity, path: pods.yaml}}]\n");
        let pods = format!(
            "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n{FULL}\n"
        );
        let read = read_files(&[("admission.yaml", &named), ("pods.yaml", &pods)]);
        assert_eq!(read.as_ref(), Ok(&expected));
        let lost = read_files(&[("admission.yaml", &named)]).unwrap_err();
        assert!(lost.starts_with("cannot read configuration pods.yaml"), "{lost}");
        assert_eq!(read_files(&[("a.yaml", HEAD)]), Ok(PodSecuritySettings::default()));
    }

    #[test]
    fn every_fault_is_named() {
        let faults = "defaults:
  enforce: strict
  audit-version: \"1.24\"
  enforceVersion: latest
exemptions:
  usernames: [\"\", a, a]
  runtimeClasses: [Kata]
  namespaces: [a.b]
  users: []";
        let error = embedded("v1", faults).unwrap_err();
        for fault in [
            "defaults.enforceVersion: unknown field",
            "exemptions.users: unknown field",
            "defaults.enforce: invalid value \"strict\": must be one of privileged, baseline, restricted",
            "defaults.audit-version: invalid value \"1.24\": must be \"latest\" or \"v1.x\"",
            "exemptions.usernames[0]: invalid value \"\": must not be empty",
            "exemptions.usernames[2]: duplicate value \"a\"",
            "exemptions.runtimeClasses[0]: invalid value \"Kata\": a lowercase RFC 1123 subdomain",
            "exemptions.namespaces[0]: invalid value \"a.b\": a lowercase RFC 1123 label",
        ] {
            assert!(error.contains(fault), "{fault}\n{error}");
        }
        for (file, fault) in [
            ("kind: Pod\n".to_owned(), "expected apiVersion \"apiserver.config.k8s.io/v1\""),
            (
                format!("{HEAD}plugins: [{{name: EventRateLimit, path: x}}]\n"),
                "plugins[0].name: \"EventRateLimit\" has no configuration here",
            ),
            (
                format!("{HEAD}plugins: [{{name: PodSecurity}}]\n"),
                "plugins[0].configuration: expected a configuration or the path of one",
            ),
            (
                format!(
                    "{HEAD}plugins: [{{name: PodSecurity, path: a}}, {{name: PodSecurity, path: b}}]\n"
                ),
                "plugins[1].name: PodSecurity is configured twice",
            ),
            (format!("{HEAD}plugin: []\n"), "plugin: unknown field"),
        ] {
            let error = read_files(&[("admission.yaml", &file)]).unwrap_err();
            assert!(error.contains(fault), "{fault}\n{error}");
        }
        let error = embedded("v2", "defaults: {}").unwrap_err();
        assert!(error.contains("pod-security.admission.config.k8s.io/v2"), "{error}");
    }
}
