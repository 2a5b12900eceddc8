//! Closed sets of strings, which validation checks and OpenAPI shows: one list each, in the order of Kubernetes' error messages.

use crate::shape::Shape;

type Words = &'static [&'static str];

pub(crate) const ACCESS_MODES: Words =
    &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(crate) const ADDRESS_TYPES: Words = &["FQDN", "IPv4", "IPv6"];
pub(crate) const AZURE_CACHING_MODES: Words = &["None", "ReadOnly", "ReadWrite"];
pub(crate) const AZURE_DISK_KINDS: Words = &["Dedicated", "Managed", "Shared"];
pub(crate) const BINDING_MODES: Words = &["Immediate", "WaitForFirstConsumer"];
pub(crate) const CLAIM_RETENTION_POLICIES: Words = &["Retain", "Delete"];
pub(crate) const COMPLETION_MODES: Words = &["Indexed", "NonIndexed"];
pub(crate) const CONCURRENCY_POLICIES: Words = &["Allow", "Forbid", "Replace"];
pub(crate) const DEPLOYMENT_STRATEGIES: Words = &["Recreate", "RollingUpdate"];
pub(crate) const DNS_POLICIES: Words =
    &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
pub(crate) const EXIT_CODE_OPERATORS: Words = &["In", "NotIn"];
pub(crate) const FAILURE_ACTIONS: Words = &["Count", "FailJob", "Ignore"];
pub(crate) const FS_GROUP_CHANGE_POLICIES: Words = &["Always", "OnRootMismatch"];
pub(crate) const HOST_PATH_TYPES: Words = &[
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
pub(crate) const INCLUSION_POLICIES: Words = &["Honor", "Ignore"];
pub(crate) const IP_FAMILIES: Words = &["IPv4", "IPv6"];
pub(crate) const IP_FAMILY_POLICIES: Words =
    &["PreferDualStack", "RequireDualStack", "SingleStack"];
pub(crate) const KEY_USAGES: Words = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
pub(crate) const NODE_OPERATORS: Words = &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
pub(crate) const PATH_TYPES: Words = &["Exact", "ImplementationSpecific", "Prefix"];
pub(crate) const POD_MANAGEMENT_POLICIES: Words = &["OrderedReady", "Parallel"];
pub(crate) const POLICY_TYPES: Words = &["Egress", "Ingress"];
pub(crate) const PREEMPTION_POLICIES: Words = &["Never", "PreemptLowerPriority"];
pub(crate) const PROC_MOUNTS: Words = &["Default", "Unmasked"];
pub(crate) const PROPAGATION_MODES: Words = &["Bidirectional", "HostToContainer", "None"];
pub(crate) const PROTOCOLS: Words = &["SCTP", "TCP", "UDP"];
pub(crate) const PULL_POLICIES: Words = &["Always", "IfNotPresent", "Never"];
pub(crate) const QUOTA_OPERATORS: Words = &["In", "NotIn", "Exists", "DoesNotExist"];
pub(crate) const QUOTA_SCOPES: Words = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
];
pub(crate) const RECLAIM_POLICIES: Words = &["Delete", "Recycle", "Retain"];
pub(crate) const RESTART_POLICIES: Words = &["Always", "OnFailure", "Never"];
pub(crate) const SCHEMES: Words = &["HTTP", "HTTPS"];
pub(crate) const SECCOMP_TYPES: Words = &["Localhost", "RuntimeDefault", "Unconfined"];
pub(crate) const SERVICE_TYPES: Words = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
pub(crate) const SESSION_AFFINITIES: Words = &["ClientIP", "None"];
pub(crate) const TAINT_EFFECTS: Words = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
pub(crate) const TERMINATION_MESSAGE_POLICIES: Words = &["FallbackToLogsOnError", "File"];
pub(crate) const TOLERATION_OPERATORS: Words = &["Equal", "Exists"];
pub(crate) const TRAFFIC_POLICIES: Words = &["Cluster", "Local"];
/// How pods are replaced by a DaemonSet or a StatefulSet.
pub(crate) const UPDATE_STRATEGIES: Words = &["OnDelete", "RollingUpdate"];
pub(crate) const VOLUME_MODES: Words = &["Block", "Filesystem"];
pub(crate) const UNSATISFIABLE_ACTIONS: Words = &["DoNotSchedule", "ScheduleAnyway"];
pub(crate) const WEBHOOK_FAILURE_POLICIES: Words = &["Fail", "Ignore"];
pub(crate) const WEBHOOK_MATCH_POLICIES: Words = &["Equivalent", "Exact"];
pub(crate) const WEBHOOK_OPERATIONS: Words = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
pub(crate) const WEBHOOK_REINVOCATION_POLICIES: Words = &["IfNeeded", "Never"];
pub(crate) const WEBHOOK_SCOPES: Words = &["*", "Cluster", "Namespaced"];
/// `v1` refuses the last two, which older versions had.
pub(crate) const WEBHOOK_SIDE_EFFECTS: Words = &["None", "NoneOnDryRun", "Some", "Unknown"];

// Those of statuses, which only components write.
const CLAIM_PHASES: Words = &["Bound", "Lost", "Pending"];
const CLAIM_RESIZE_STATUSES: Words = &[
    "",
    "ControllerExpansionFailed",
    "ControllerExpansionInProgress",
    "NodeExpansionFailed",
    "NodeExpansionInProgress",
    "NodeExpansionPending",
];
const NAMESPACE_PHASES: Words = &["Active", "Terminating"];
const NODE_PHASES: Words = &["Pending", "Running", "Terminated"];
const POD_PHASES: Words = &["Failed", "Pending", "Running", "Succeeded", "Unknown"];
const QOS_CLASSES: Words = &["BestEffort", "Burstable", "Guaranteed"];
const VOLUME_PHASES: Words = &["Available", "Bound", "Failed", "Pending", "Released"];

/// The fields with such a set, all of version `v1`: group without its domain, message, field, values.
const FIELDS: &[(&str, &str, &str, Words)] = &[
    ("", "AzureDiskVolumeSource", "cachingMode", AZURE_CACHING_MODES),
    ("", "AzureDiskVolumeSource", "kind", AZURE_DISK_KINDS),
    ("", "Container", "imagePullPolicy", PULL_POLICIES),
    ("", "Container", "terminationMessagePolicy", TERMINATION_MESSAGE_POLICIES),
    ("", "ContainerPort", "protocol", PROTOCOLS),
    ("", "EndpointPort", "protocol", PROTOCOLS),
    ("", "EphemeralContainer", "imagePullPolicy", PULL_POLICIES),
    ("", "EphemeralContainer", "terminationMessagePolicy", TERMINATION_MESSAGE_POLICIES),
    ("", "HTTPGetAction", "scheme", SCHEMES),
    ("", "HostPathVolumeSource", "type", HOST_PATH_TYPES),
    ("", "NamespaceStatus", "phase", NAMESPACE_PHASES),
    ("", "NodeSelectorRequirement", "operator", NODE_OPERATORS),
    ("", "NodeStatus", "phase", NODE_PHASES),
    ("", "PersistentVolumeClaimSpec", "accessModes", ACCESS_MODES),
    ("", "PersistentVolumeClaimSpec", "volumeMode", VOLUME_MODES),
    ("", "PersistentVolumeClaimStatus", "accessModes", ACCESS_MODES),
    ("", "PersistentVolumeClaimStatus", "phase", CLAIM_PHASES),
    ("", "PersistentVolumeClaimStatus", "resizeStatus", CLAIM_RESIZE_STATUSES),
    ("", "PersistentVolumeSpec", "accessModes", ACCESS_MODES),
    ("", "PersistentVolumeSpec", "persistentVolumeReclaimPolicy", RECLAIM_POLICIES),
    ("", "PersistentVolumeSpec", "volumeMode", VOLUME_MODES),
    ("", "PersistentVolumeStatus", "phase", VOLUME_PHASES),
    ("", "PodSecurityContext", "fsGroupChangePolicy", FS_GROUP_CHANGE_POLICIES),
    ("", "PodSpec", "dnsPolicy", DNS_POLICIES),
    ("", "PodSpec", "preemptionPolicy", PREEMPTION_POLICIES),
    ("", "PodSpec", "restartPolicy", RESTART_POLICIES),
    ("", "PodStatus", "phase", POD_PHASES),
    ("", "PodStatus", "qosClass", QOS_CLASSES),
    ("", "PortStatus", "protocol", PROTOCOLS),
    ("", "ResourceQuotaSpec", "scopes", QUOTA_SCOPES),
    ("", "ScopedResourceSelectorRequirement", "operator", QUOTA_OPERATORS),
    ("", "ScopedResourceSelectorRequirement", "scopeName", QUOTA_SCOPES),
    ("", "SeccompProfile", "type", SECCOMP_TYPES),
    ("", "SecurityContext", "procMount", PROC_MOUNTS),
    ("", "ServicePort", "protocol", PROTOCOLS),
    ("", "ServiceSpec", "externalTrafficPolicy", TRAFFIC_POLICIES),
    ("", "ServiceSpec", "internalTrafficPolicy", TRAFFIC_POLICIES),
    ("", "ServiceSpec", "ipFamilies", IP_FAMILIES),
    ("", "ServiceSpec", "ipFamilyPolicy", IP_FAMILY_POLICIES),
    ("", "ServiceSpec", "sessionAffinity", SESSION_AFFINITIES),
    ("", "ServiceSpec", "type", SERVICE_TYPES),
    ("", "Taint", "effect", TAINT_EFFECTS),
    ("", "Toleration", "effect", TAINT_EFFECTS),
    ("", "Toleration", "operator", TOLERATION_OPERATORS),
    ("", "TopologySpreadConstraint", "nodeAffinityPolicy", INCLUSION_POLICIES),
    ("", "TopologySpreadConstraint", "nodeTaintsPolicy", INCLUSION_POLICIES),
    ("", "TopologySpreadConstraint", "whenUnsatisfiable", UNSATISFIABLE_ACTIONS),
    ("", "VolumeMount", "mountPropagation", PROPAGATION_MODES),
    ("admissionregistration", "MutatingWebhook", "failurePolicy", WEBHOOK_FAILURE_POLICIES),
    ("admissionregistration", "MutatingWebhook", "matchPolicy", WEBHOOK_MATCH_POLICIES),
    (
        "admissionregistration",
        "MutatingWebhook",
        "reinvocationPolicy",
        WEBHOOK_REINVOCATION_POLICIES,
    ),
    ("admissionregistration", "MutatingWebhook", "sideEffects", WEBHOOK_SIDE_EFFECTS),
    ("admissionregistration", "RuleWithOperations", "operations", WEBHOOK_OPERATIONS),
    ("admissionregistration", "RuleWithOperations", "scope", WEBHOOK_SCOPES),
    ("admissionregistration", "ValidatingWebhook", "failurePolicy", WEBHOOK_FAILURE_POLICIES),
    ("admissionregistration", "ValidatingWebhook", "matchPolicy", WEBHOOK_MATCH_POLICIES),
    ("admissionregistration", "ValidatingWebhook", "sideEffects", WEBHOOK_SIDE_EFFECTS),
    ("apps", "DaemonSetUpdateStrategy", "type", UPDATE_STRATEGIES),
    ("apps", "DeploymentStrategy", "type", DEPLOYMENT_STRATEGIES),
    ("apps", "StatefulSetSpec", "podManagementPolicy", POD_MANAGEMENT_POLICIES),
    ("apps", "StatefulSetUpdateStrategy", "type", UPDATE_STRATEGIES),
    ("batch", "CronJobSpec", "concurrencyPolicy", CONCURRENCY_POLICIES),
    ("batch", "JobSpec", "completionMode", COMPLETION_MODES),
    ("batch", "PodFailurePolicyOnExitCodesRequirement", "operator", EXIT_CODE_OPERATORS),
    ("batch", "PodFailurePolicyRule", "action", FAILURE_ACTIONS),
    ("certificates", "CertificateSigningRequestSpec", "usages", KEY_USAGES),
    ("discovery", "EndpointSlice", "addressType", ADDRESS_TYPES),
    ("networking", "HTTPIngressPath", "pathType", PATH_TYPES),
    ("networking", "NetworkPolicySpec", "policyTypes", POLICY_TYPES),
    ("storage", "StorageClass", "volumeBindingMode", BINDING_MODES),
];

/// The values of a field, or of the items of a list, if they are a closed set.
pub(crate) fn of_field(shape: &Shape, field: &str) -> Option<Words> {
    if shape.version != "v1" {
        return None;
    }
    let wanted = (shape.group, shape.name, field);
    let at = FIELDS.binary_search_by(|row| (row.0, row.1, row.2).cmp(&wanted)).ok()?;
    FIELDS.get(at).map(|row| row.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_about_fields_that_are_there() {
        assert!(FIELDS.is_sorted_by_key(|row| (row.0, row.1, row.2)));
        for (group, message, field, values) in FIELDS {
            let id = proto_api::schema::message_id(group, "v1", message);
            assert!(
                id.is_some_and(|id| id.get().field(field).is_some()),
                "{group} {message} {field}"
            );
            assert!(values.len() > 1, "{message} {field}");
        }
    }
}
