//! Exemptions from policies, and the default policy of namespaces without one.

use std::collections::BTreeMap;
use std::fmt;

use proto_api::names::Names;

use crate::policy::{LevelVersion, NamespacePolicy, PodSecurityLevel};
use crate::text::quote;

/// Requests of these users, pods of these runtime classes and everything in these namespaces are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    /// Names of users.
    pub usernames: Vec<String>,
    /// Names of RuntimeClasses.
    pub runtime_classes: Vec<String>,
    /// Names of namespaces.
    pub namespaces: Vec<String>,
}

impl Exemptions {
    /// Whether a request of this user in this namespace is not checked.
    #[must_use]
    pub fn cover_request(&self, user: &str, namespace: &str) -> bool {
        has(&self.namespaces, namespace) || has(&self.usernames, user)
    }

    /// Whether a pod of this runtime class is not checked.
    #[must_use]
    pub fn cover_class(&self, class: Option<&str>) -> bool {
        class.is_some_and(|class| has(&self.runtime_classes, class))
    }

    /// Whether a namespace is exempt.
    #[must_use]
    pub fn cover_namespace(&self, namespace: &str) -> bool {
        has(&self.namespaces, namespace)
    }
}

fn has(list: &[String], name: &str) -> bool {
    !name.is_empty() && list.iter().any(|listed| listed == name)
}

/// The warning that the labels of an exempt namespace have no effect; `None` if there are none, or if they ask for nothing.
#[must_use]
pub fn warn_of_exempt_namespace(
    namespace: &str,
    labels: &BTreeMap<String, String>,
    policy: &NamespacePolicy,
    names: &Names,
) -> Option<String> {
    let asked = ActiveLevels(policy).to_string();
    let modes = ["enforce", "audit", "warn"];
    let is_own = |label: &String| {
        modes.iter().any(|mode| {
            [(*mode).to_owned(), format!("{mode}-version")]
                .iter()
                .any(|name| *label == names.sub_label("pod-security", name))
        })
    };
    let is_ineffective = !asked.is_empty() && labels.keys().any(is_own);
    is_ineffective.then(|| {
        format!(
            "namespace {} is exempt from Pod Security, and the policy ({asked}) will be ignored",
            quote(namespace)
        )
    })
}

/// The levels of a policy that ask for something: `enforce=baseline:latest, warn=restricted:latest`.
struct ActiveLevels<'a>(&'a NamespacePolicy);

impl fmt::Display for ActiveLevels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamespacePolicy { enforce, audit, warn } = self.0;
        let mut separator = "";
        let modes: [(&str, &LevelVersion); 3] =
            [("enforce", enforce), ("audit", audit), ("warn", warn)];
        for (mode, asked) in modes {
            if asked.level != PodSecurityLevel::Privileged {
                write!(f, "{separator}{mode}={asked}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::policy::{PodSecurityVersion, read_policy};

    #[test]
    fn only_what_is_named_is_exempt() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let exempt = Exemptions {
            usernames: names(&["jane"]),
            runtime_classes: names(&["kata"]),
            namespaces: names(&["kube-system"]),
        };
        for (user, namespace, covered) in [
            ("jane", "team", true),
            ("joe", "kube-system", true),
            ("joe", "team", false),
            ("kube-system", "jane", false),
            ("", "", false),
        ] {
            assert_eq!(exempt.cover_request(user, namespace), covered, "{user} {namespace}");
        }
        assert!(exempt.cover_namespace("kube-system") && !exempt.cover_namespace("kube"));
        for (class, covered) in
            [(Some("kata"), true), (Some("runc"), false), (Some(""), false), (None, false)]
        {
            assert_eq!(exempt.cover_class(class), covered, "{class:?}");
        }
        assert!(!Exemptions::default().cover_request("", ""));
    }

    #[test]
    fn labels_of_exempt_namespaces_have_warnings() {
        let names = Names::new(Profile::Kubernetes);
        let warning = |labels: &[(&str, &str)], defaults: NamespacePolicy| {
            let label = |(mode, value): &(&str, &str)| {
                (format!("pod-security.kubernetes.io/{mode}"), (*value).to_owned())
            };
            let labels: BTreeMap<String, String> = labels.iter().map(label).collect();
            let (policy, _) = read_policy(&labels, defaults, names);
            warn_of_exempt_namespace("kube-system", &labels, &policy, names)
        };
        let text = |asked: &str| {
            Some(format!(
                "namespace \"kube-system\" is exempt from Pod Security, and the policy ({asked}) will be ignored"
            ))
        };
        let plain = NamespacePolicy::default();
        assert_eq!(warning(&[], plain), None);
        assert_eq!(warning(&[("enforce", "privileged")], plain), None);
        assert_eq!(
            warning(
                &[("enforce", "baseline"), ("warn", "restricted"), ("warn-version", "v1.24")],
                plain
            ),
            text("enforce=baseline:latest, warn=restricted:v1.24")
        );
        let strict = LevelVersion {
            level: PodSecurityLevel::Restricted,
            version: PodSecurityVersion::Latest,
        };
        let defaults = NamespacePolicy { audit: strict, ..plain };
        assert_eq!(warning(&[], defaults), None, "defaults are nobody's mistake");
        assert_eq!(warning(&[("warn-version", "v1.1")], defaults), text("audit=restricted:latest"));
    }
}
