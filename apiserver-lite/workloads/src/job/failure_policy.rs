//! What the pod failure policy of a job says of its failed pods. The first rule that matches decides; a pod that none matches counts.

use proto_api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use proto_api::core::v1::{ContainerStatus, Pod, PodCondition};

/// What of a pod a rule matches.
enum Match<'a> {
    /// The container, and its exit code.
    ExitCode(&'a str, i32),
    /// The type of the condition.
    Condition(&'a str),
}

/// Whether the failure of `pod` is not counted.
pub(super) fn ignores(job: &Job, pod: &Pod) -> bool {
    decide(job, pod).is_some_and(|(_, rule, _)| rule.action == "Ignore")
}

/// Why the job has failed, if a rule says so of one of its failed pods.
pub(super) fn fails(job: &Job, pods: &[&Pod]) -> Option<String> {
    let failed = pods.iter().filter(|pod| pod.status.phase == "Failed");
    failed.filter_map(|pod| message(pod, decide(job, pod)?)).next()
}

/// The message of a job that fails because of `pod`.
fn message(pod: &Pod, decided: (usize, &PodFailurePolicyRule, Match<'_>)) -> Option<String> {
    let (at, rule, matched) = decided;
    if rule.action != "FailJob" {
        return None;
    }
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    let rule = format!("matching FailJob rule at index {at}");
    Some(match matched {
        Match::ExitCode(container, code) => format!(
            "Container {container} for pod {namespace}/{name} failed with exit code {code} {rule}"
        ),
        Match::Condition(kind) => format!("Pod {namespace}/{name} has condition {kind} {rule}"),
    })
}

/// The first rule that matches, with its index.
fn decide<'a>(job: &'a Job, pod: &'a Pod) -> Option<(usize, &'a PodFailurePolicyRule, Match<'a>)> {
    let policy = job.spec.pod_failure_policy.as_ref()?;
    let mut rules = policy.rules.iter().enumerate();
    rules.find_map(|(at, rule)| Some((at, rule, match_rule(rule, pod)?)))
}

fn match_rule<'a>(rule: &PodFailurePolicyRule, pod: &'a Pod) -> Option<Match<'a>> {
    match &rule.on_exit_codes {
        Some(wanted) => {
            let status = &pod.status;
            let mut all = status.container_statuses.iter().chain(&status.init_container_statuses);
            all.find_map(|status| match_exit_code(wanted, status))
        }
        None => {
            let mut all = pod.status.conditions.iter();
            let condition = all.find(|is| rule.on_pod_conditions.iter().any(|p| is_like(is, p)))?;
            Some(Match::Condition(&condition.type_))
        }
    }
}

/// A container that has ended with a code that is wanted. Code 0 is no failure, and never matches.
fn match_exit_code<'a>(
    wanted: &PodFailurePolicyOnExitCodesRequirement,
    status: &'a ContainerStatus,
) -> Option<Match<'a>> {
    if wanted.container_name.as_ref().is_some_and(|name| *name != status.name) {
        return None;
    }
    let code = status.state.terminated.as_ref()?.exit_code;
    let is_listed = wanted.values.contains(&code);
    let matches = match wanted.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        _ => false,
    };
    (code != 0 && matches).then_some(Match::ExitCode(&status.name, code))
}

fn is_like(is: &PodCondition, wanted: &PodFailurePolicyOnPodConditionsPattern) -> bool {
    is.type_ == wanted.type_ && is.status == wanted.status
}
