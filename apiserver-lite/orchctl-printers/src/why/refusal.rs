//! Pods that the server refuses to a controller: quotas, admission, accounts.

use super::Finding;

/// From what the server said.
pub(super) fn explain(message: &str) -> Finding {
    let (what, next) = if message.contains("exceeded quota") {
        (
            "the quota of the namespace does not allow its pods",
            "delete what is not needed, ask for less, or raise the quota: orchctl describe quota",
        )
    } else if message.contains("failed quota") || message.contains("must specify limits") {
        (
            "the quota of the namespace wants requests or limits that its pods do not have",
            "set resources in the pod template, or defaults with a LimitRange",
        )
    } else if message.contains("violates PodSecurity") {
        (
            "the pod security level of the namespace does not allow its pods",
            "change the security context in the pod template, or the level of the namespace",
        )
    } else if message.contains("serviceaccount") && message.contains("not found") {
        (
            "the service account of its pods does not exist",
            "create it: orchctl create serviceaccount NAME",
        )
    } else if message.contains("admission webhook") {
        ("an admission webhook refuses its pods", "see to what the webhook asks for")
    } else if message.contains("usage per") {
        (
            "a limit range of the namespace does not allow its pods",
            "change resources in the pod template: orchctl describe limitrange",
        )
    } else {
        ("its pods cannot be made", "see to what the server says")
    };
    Finding::stuck(what, message, next)
}
