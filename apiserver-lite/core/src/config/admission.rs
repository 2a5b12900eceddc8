//! Settings of admission: its steps by the names of Kubernetes' plugins, which of them are disabled, and the policy of pods in namespaces without one.

use std::path::PathBuf;
use std::str::FromStr;

use apiserver_pod_security::{Exemptions, NamespacePolicy};

/// Which admission plugins run, and their settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// The file that configures plugins (`--admission-control-config-file`); [`Self::pod_security`] is what it says.
    pub config_file: Option<PathBuf>,
    /// Plugins that are named as enabled. All are, but for the disabled ones and [`AdmissionPlugin::PodNodeSelector`].
    pub enabled: Vec<AdmissionPlugin>,
    /// Plugins that do not run.
    pub disabled: Vec<AdmissionPlugin>,
    /// The configuration of PodSecurity.
    pub pod_security: PodSecuritySettings,
}

impl AdmissionSettings {
    /// Whether a plugin runs.
    #[must_use]
    pub fn runs(&self, plugin: AdmissionPlugin) -> bool {
        let is_on = plugin != AdmissionPlugin::PodNodeSelector || self.enabled.contains(&plugin);
        is_on && !self.disabled.contains(&plugin)
    }

    /// The first plugin that is named as enabled and as disabled.
    #[must_use]
    pub fn contradiction(&self) -> Option<AdmissionPlugin> {
        self.enabled.iter().copied().find(|plugin| self.disabled.contains(plugin))
    }
}

/// What PodSecurity does beyond the labels of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSecuritySettings {
    /// The policy of what a namespace has no label for.
    pub defaults: NamespacePolicy,
    /// What no policy applies to.
    pub exemptions: Exemptions,
}

/// An admission plugin, by the name that kube-apiserver's flags use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionPlugin {
    /// Who may approve requests for certificates of a signer.
    CertificateApproval,
    /// Who may sign requests for certificates of a signer.
    CertificateSigning,
    /// Groups that no requested certificate may have.
    CertificateSubjectRestriction,
    /// The default class of Ingresses.
    DefaultIngressClass,
    /// The default class of claims.
    DefaultStorageClass,
    /// Tolerations of nodes that are not ready.
    DefaultTolerationSeconds,
    /// LimitRanges.
    LimitRanger,
    /// Webhooks that may change objects.
    MutatingAdmissionWebhook,
    /// Namespaces that are missing or being deleted.
    NamespaceLifecycle,
    /// What kubelets write.
    NodeRestriction,
    /// Expansion of claims.
    PersistentVolumeClaimResize,
    /// The nodes for the pods of a namespace. Off unless enabled, as in Kubernetes.
    PodNodeSelector,
    /// The Pod Security Standards.
    PodSecurity,
    /// PriorityClasses.
    Priority,
    ResourceQuota,
    /// RuntimeClasses.
    RuntimeClass,
    /// Service accounts of pods.
    ServiceAccount,
    /// Finalizers of claims and volumes in use.
    StorageObjectInUseProtection,
    /// The taint of new Nodes.
    TaintNodesByCondition,
    /// Webhooks that may refuse requests.
    ValidatingAdmissionWebhook,
}

/// A name is that of no plugin here. Policies that are enabled and not there would be silence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {0:?} is unknown to this server, which has {names}", names = names())]
pub struct UnknownPlugin(String);

const ALL: &[(AdmissionPlugin, &str)] = &[
    (AdmissionPlugin::CertificateApproval, "CertificateApproval"),
    (AdmissionPlugin::CertificateSigning, "CertificateSigning"),
    (AdmissionPlugin::CertificateSubjectRestriction, "CertificateSubjectRestriction"),
    (AdmissionPlugin::DefaultIngressClass, "DefaultIngressClass"),
    (AdmissionPlugin::DefaultStorageClass, "DefaultStorageClass"),
    (AdmissionPlugin::DefaultTolerationSeconds, "DefaultTolerationSeconds"),
    (AdmissionPlugin::LimitRanger, "LimitRanger"),
    (AdmissionPlugin::MutatingAdmissionWebhook, "MutatingAdmissionWebhook"),
    (AdmissionPlugin::NamespaceLifecycle, "NamespaceLifecycle"),
    (AdmissionPlugin::NodeRestriction, "NodeRestriction"),
    (AdmissionPlugin::PersistentVolumeClaimResize, "PersistentVolumeClaimResize"),
    (AdmissionPlugin::PodNodeSelector, "PodNodeSelector"),
    (AdmissionPlugin::PodSecurity, "PodSecurity"),
    (AdmissionPlugin::Priority, "Priority"),
    (AdmissionPlugin::ResourceQuota, "ResourceQuota"),
    (AdmissionPlugin::RuntimeClass, "RuntimeClass"),
    (AdmissionPlugin::ServiceAccount, "ServiceAccount"),
    (AdmissionPlugin::StorageObjectInUseProtection, "StorageObjectInUseProtection"),
    (AdmissionPlugin::TaintNodesByCondition, "TaintNodesByCondition"),
    (AdmissionPlugin::ValidatingAdmissionWebhook, "ValidatingAdmissionWebhook"),
];

fn names() -> String {
    ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

impl FromStr for AdmissionPlugin {
    type Err = UnknownPlugin;

    fn from_str(text: &str) -> Result<Self, UnknownPlugin> {
        let found = ALL.iter().find(|(_, name)| *name == text);
        found.map(|(plugin, _)| *plugin).ok_or_else(|| UnknownPlugin(text.to_owned()))
    }
}

impl AdmissionPlugin {
    /// Whether the server cannot do without it: what keeps kubelets to their node, and objects out of namespaces that end.
    #[must_use]
    pub fn is_required(self) -> bool {
        matches!(self, Self::NamespaceLifecycle | Self::NodeRestriction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_have_kubernetes_names_and_others_are_unknown() {
        for (plugin, name) in ALL {
            assert_eq!(name.parse(), Ok(*plugin));
            assert_eq!(format!("{plugin:?}"), *name);
        }
        let error = "ImagePolicyWebhook".parse::<AdmissionPlugin>().unwrap_err().to_string();
        assert!(
            error.starts_with("plugin \"ImagePolicyWebhook\" is unknown to this server, which has CertificateApproval, "),
            "{error}"
        );
    }
}
