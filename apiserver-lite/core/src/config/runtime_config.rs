//! `--runtime-config`: groups, versions and resources that are switched on or off.

use std::collections::BTreeMap;
use std::str::FromStr;

use proto_api::names::Names;
use proto_api::schema;

/// What is switched, by key: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `group/version` or `group/version/resource`, without the domain of the group once
/// it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig(BTreeMap<String, bool>);

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    /// The value is no truth value.
    #[error("invalid value of {0}={1}: expected true or false")]
    Value(String, String),
    /// The key has neither one form nor another.
    #[error("runtime-config invalid key {0}")]
    Key(String),
    /// The group is not known.
    #[error("unknown api groups {0}")]
    Group(String),
    /// The group has no such version.
    #[error("group version {0} that has not been registered")]
    Version(String),
    /// The version has no such resource.
    #[error("resource {0} that has not been registered")]
    Resource(String),
    /// Everything would be off.
    #[error("invalid key with only api/all=false")]
    Nothing,
}

const ALL: &str = "api/all";
/// The keys of levels, and how to know their versions.
const LEVELS: [&str; 3] = ["api/ga", "api/beta", "api/alpha"];

impl FromStr for RuntimeConfig {
    type Err = RuntimeConfigError;

    /// Reads `key[=value],...`; a key without a value is on.
    fn from_str(text: &str) -> Result<Self, RuntimeConfigError> {
        let mut settings = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, "true"));
            let on = match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" | "" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                other => {
                    return Err(RuntimeConfigError::Value(key.to_owned(), other.to_owned()));
                }
            };
            settings.insert(key.trim().to_owned(), on);
        }
        Ok(Self(settings))
    }
}

impl FromIterator<Self> for RuntimeConfig {
    /// Joins settings; of a key that several have the last counts.
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        Self(all.into_iter().flat_map(|config| config.0).collect())
    }
}

impl RuntimeConfig {
    /// The settings with short groups.
    ///
    /// # Errors
    /// The first key that names nothing that this server has.
    pub fn checked(self, names: &Names) -> Result<Self, RuntimeConfigError> {
        if self.0.len() == 1 && self.0.get(ALL) == Some(&false) {
            return Err(RuntimeConfigError::Nothing);
        }
        let keys = self.0.into_iter().map(|(key, on)| Ok((short_key(key, names)?, on)));
        keys.collect::<Result<_, _>>().map(Self)
    }

    /// Whether a resource of a short group is served. What is not built in is not switched. Versions of [`schema::optional_resources`] are served only if
    /// they are named: no key of a level switches them on.
    #[must_use]
    pub fn serves(&self, group: &str, version: &str, resource: &str) -> bool {
        let of = |key: &str| self.0.get(key).copied();
        let named = || {
            of(&format!("{group}/{version}/{resource}"))
                .or_else(|| of(&format!("{group}/{version}")))
        };
        if schema::optional_resource(group, version, resource).is_some() {
            return named().unwrap_or(false);
        }
        let is_alpha = version.contains("alpha");
        if self.0.is_empty() && !is_alpha || schema::resource(group, version, resource).is_none() {
            return true;
        }
        named().or_else(|| of(level(version))).or_else(|| of(ALL)).unwrap_or(!is_alpha)
    }
}

fn level(version: &str) -> &'static str {
    let [ga, beta, alpha] = LEVELS;
    match version {
        version if version.contains("alpha") => alpha,
        version if version.contains("beta") => beta,
        _ => ga,
    }
}

fn short_key(key: String, names: &Names) -> Result<String, RuntimeConfigError> {
    if key == ALL || LEVELS.contains(&key.as_str()) {
        return Ok(key);
    }
    let parts: Vec<&str> = key.split('/').collect();
    let (group, version, resource) = match parts.as_slice() {
        // The core group has no name.
        ["v1"] | ["api", "v1"] => ("", "v1", None),
        ["v1", resource] | ["api", "v1", resource] => ("", "v1", Some(*resource)),
        [group, version] => (*group, *version, None),
        [group, version, resource] => (*group, *version, Some(*resource)),
        _ => return Err(RuntimeConfigError::Key(key)),
    };
    let all = || schema::resources().iter().chain(schema::optional_resources());
    let rows = || all().filter(|row| names.group(row.group) == group);
    let Some(short) = rows().next().map(|row| row.group) else {
        return Err(RuntimeConfigError::Group(group.to_owned()));
    };
    let mut of_version = rows().filter(|row| row.version == version).peekable();
    if of_version.peek().is_none() {
        return Err(RuntimeConfigError::Version(format!("{group}/{version}")));
    }
    match resource {
        None => Ok(format!("{short}/{version}")),
        Some(plural) if of_version.any(|row| row.plural == plural) => {
            Ok(format!("{short}/{version}/{plural}"))
        }
        Some(_) => Err(RuntimeConfigError::Resource(key)),
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn read(text: &str) -> Result<RuntimeConfig, String> {
        let read = text.parse::<RuntimeConfig>();
        let checked = read.and_then(|read| read.checked(Names::new(Profile::Kubernetes)));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_narrowest_setting_decides() {
        let flow = ("flowcontrol.apiserver", "flowschemas");
        for (text, version, expected) in [
            ("", "v1beta1", true),
            ("flowcontrol.apiserver.k8s.io/v1beta1=false", "v1beta1", false),
            ("flowcontrol.apiserver.k8s.io/v1beta1=false", "v1beta2", true),
            ("api/beta=false", "v1beta1", false),
            ("api/beta=false,flowcontrol.apiserver.k8s.io/v1beta1", "v1beta1", true),
            ("api/beta=false,flowcontrol.apiserver.k8s.io/v1beta1", "v1beta2", false),
            ("api/all=false,api/beta=true", "v1beta1", true),
            ("api/all=false,api/ga=true", "v1beta1", false),
            ("flowcontrol.apiserver.k8s.io/v1beta1/flowschemas=false", "v1beta1", false),
            (
                "flowcontrol.apiserver.k8s.io/v1beta1=false,flowcontrol.apiserver.k8s.io/v1beta1/flowschemas=true",
                "v1beta1",
                true,
            ),
        ] {
            assert_eq!(read(text).unwrap().serves(flow.0, version, flow.1), expected, "{text}");
        }
        let pods = |text: &str| read(text).unwrap().serves("", "v1", "pods");
        assert!(!pods("v1/pods=false") && !pods("api/v1=false") && pods("api/beta=false"));
        assert!(!pods("api/ga=false,batch/v1=true"));
        let own = read("api/all=false,v1=true").unwrap();
        assert!(own.serves("example.com", "v1", "widgets"), "what is not built in stays");
    }

    #[test]
    fn versions_that_kubernetes_has_removed_are_served_if_they_are_named() {
        let serves = |text: &str, plural: &str| {
            let (group, version) = match plural {
                "cronjobs" => ("batch", "v1beta1"),
                _ => ("storage", "v1beta1"),
            };
            read(text).unwrap().serves(group, version, plural)
        };
        for text in ["", "api/beta=true", "api/all=true", "batch/v1=true", "batch/v1beta1=false"] {
            assert!(!serves(text, "cronjobs"), "{text}");
        }
        for text in ["batch/v1beta1", "batch/v1beta1/cronjobs=true", "api/beta=false,batch/v1beta1"]
        {
            assert!(serves(text, "cronjobs"), "{text}");
        }
        let storage = "storage.k8s.io/v1beta1=true,storage.k8s.io/v1beta1/csinodes=false";
        assert!(serves(storage, "csidrivers") && !serves(storage, "csinodes"));
        assert!(serves("", "csistoragecapacities"), "1.25 has it");
    }

    #[test]
    fn unknown_runtime_config_keys_are_refused() {
        for (text, expected) in [
            ("api/all=false", "invalid key with only api/all=false"),
            ("batch/v1=maybe", "invalid value of batch/v1=maybe: expected true or false"),
            ("nonsense", "runtime-config invalid key nonsense"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("example.com/v1", "unknown api groups example.com"),
            ("batch/v9", "group version batch/v9 that has not been registered"),
            ("batch/v1/pods", "resource batch/v1/pods that has not been registered"),
        ] {
            assert_eq!(read(text).unwrap_err(), expected);
        }
    }
}
