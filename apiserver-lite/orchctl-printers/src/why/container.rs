//! One container of a pod: images, configuration, crashes, probes.

use serde_json::Value;

use super::{Finding, PodCase, last_event};
use crate::objects;

/// A container of a pod with its status.
pub(super) struct Container<'a> {
    /// The pod with its events.
    pub(super) case: &'a PodCase,
    /// What it should be.
    pub(super) spec: &'a Value,
    /// What it is; null as long as the node has not said.
    pub(super) status: &'a Value,
    /// `container` or `init container`.
    pub(super) title: &'static str,
}

impl<'a> Container<'a> {
    /// Those of `spec.{field}` with their statuses.
    pub(super) fn all(
        case: &'a PodCase,
        field: &str,
        statuses: &str,
        title: &'static str,
    ) -> Vec<Self> {
        let known = objects::list_at(&case.pod, &format!("/status/{statuses}"));
        objects::list_at(&case.pod, &format!("/spec/{field}"))
            .iter()
            .map(|spec| {
                let same = |one: &&Value| one.get("name") == spec.get("name");
                let status = known.iter().find(same).unwrap_or(&Value::Null);
                Self { case, spec, status, title }
            })
            .collect()
    }

    /// `container app`.
    pub(super) fn called(&self) -> String {
        format!("{} {}", self.title, self.name())
    }

    fn name(&self) -> &'a str {
        objects::text_at(self.spec, "/name")
    }

    /// Whether an init container has done its work.
    pub(super) fn is_done(&self) -> bool {
        let code = self.status.pointer("/state/terminated/exitCode");
        code.and_then(Value::as_i64) == Some(0)
    }

    /// Whether it counts as ready.
    pub(super) fn is_ready(&self) -> bool {
        self.status.get("ready") == Some(&Value::Bool(true))
    }

    /// Whether the node is still at what comes before the container.
    pub(super) fn is_not_begun(&self) -> bool {
        let waiting = objects::text_at(self.status, "/state/waiting/reason");
        let state = objects::map_at(self.status, "/state");
        state.is_none_or(serde_json::Map::is_empty)
            || matches!(waiting, "ContainerCreating" | "PodInitializing")
            || state.is_some_and(|state| state.contains_key("waiting")) && waiting.is_empty()
    }

    /// Why it does not run or is not ready.
    pub(super) fn explain(&self) -> Vec<Finding> {
        if let Some(waiting) = self.status.pointer("/state/waiting") {
            return self.explain_waiting(waiting);
        }
        if let Some(ended) = self.status.pointer("/state/terminated") {
            let what = format!("{} has ended", self.called());
            let (evidence, next) = (ended_as(ended), self.advice_for_end(ended));
            return vec![Finding::stuck(what, evidence, next)];
        }
        self.explain_running()
    }

    fn explain_waiting(&self, waiting: &Value) -> Vec<Finding> {
        let message = objects::text_at(waiting, "/message");
        let called = self.called();
        let shown = super::reason_of(waiting);
        match objects::text_at(waiting, "/reason") {
            "ImagePullBackOff"
            | "ErrImagePull"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "ErrImageNotFound" => {
                vec![self.explain_image(waiting)]
            }
            "CreateContainerConfigError" => {
                let what = format!("{called} cannot be configured");
                let general =
                    Finding::stuck(what, message, "correct the container in the pod's spec");
                vec![missing_source(message).unwrap_or(general)]
            }
            "CrashLoopBackOff" => self.explain_crash(message),
            "PostStartHookError" => vec![self.explain_post_start(message)],
            "CreateContainerError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PreStartHookError" => vec![Finding::stuck(
                format!("{called} cannot be started"),
                shown,
                "check its command, mounts and security context against the message",
            )],
            _ => vec![Finding::waiting(
                format!("{called} is waiting"),
                shown,
                format!("wait, or look at {}", self.describe()),
            )],
        }
    }

    fn explain_image(&self, waiting: &Value) -> Finding {
        let image = objects::text_at(self.spec, "/image");
        let mut message = objects::text_at(waiting, "/message");
        let reason = objects::text_at(waiting, "/reason");
        // During the back-off only events say why the last pull failed.
        if reason == "ImagePullBackOff" {
            let failed = self.case.events.iter().rev().find(|event| {
                objects::text_at(event, "/reason") == "Failed"
                    && objects::text_at(event, "/message").contains("pull image")
                    && self.is_named_by(event)
            });
            message = failed.map_or(message, |event| objects::text_at(event, "/message"));
        }
        let lower = message.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        let next = if reason == "InvalidImageName" {
            "correct the name of the image"
        } else if reason == "ErrImageNeverPull" {
            "bring the image to the node, or change imagePullPolicy: it is Never"
        } else if has(&["unauthorized", "denied", "authentication", "no basic auth", "forbidden"]) {
            "check that the image exists, and give the pod imagePullSecrets that the registry accepts"
        } else if has(&["not found", "manifest unknown", "does not exist"]) {
            "check the name and tag of the image"
        } else if has(&["no such host", "timeout", "connection refused", "deadline", "i/o"]) {
            "check that the node reaches the registry"
        } else {
            "check the image's name, and what the node says of the pull"
        };
        let what = format!("the image {image} of {} cannot be pulled", self.called());
        Finding::stuck(what, format!("{reason}: {message}"), next)
    }

    fn explain_crash(&self, message: &str) -> Vec<Finding> {
        let called = self.called();
        let times = self.status.get("restartCount").and_then(Value::as_i64).unwrap_or_default();
        let (ended, next) = match self.status.pointer("/lastState/terminated") {
            Some(ended) => (format!("last with {}", ended_as(ended)), self.advice_for_end(ended)),
            None => (message.to_owned(), format!("read its last output: {}", self.last_logs())),
        };
        let evidence = format!("CrashLoopBackOff: restarted {times} times, {ended}");
        let mut findings = vec![Finding::stuck(format!("{called} keeps crashing"), evidence, next)];
        // A process that the node ends for its probes seems to crash.
        let killed = last_event(&self.case.events, &["Killing"]);
        if killed.is_some_and(|message| message.contains("probe")) {
            findings
                .extend(["Liveness", "Startup"].iter().find_map(|kind| self.failed_probe(kind)));
        }
        if killed.is_some_and(|message| message.contains("FailedPostStartHook")) {
            findings.extend(self.failed_post_start());
        }
        findings
    }

    fn explain_running(&self) -> Vec<Finding> {
        let called = self.called();
        let started = self.status.get("started") != Some(&Value::Bool(false));
        let (kind, field) = match self.spec.get("startupProbe") {
            Some(_) if !started => ("Startup", "startupProbe"),
            _ => ("Readiness", "readinessProbe"),
        };
        if let Some(finding) = self.failed_probe(kind) {
            let liveness = self.failed_probe("Liveness").filter(|_| kind != "Startup");
            return [finding].into_iter().chain(liveness).collect();
        }
        let Some(probe) = self.spec.get(field) else {
            let what = format!("{called} runs and is not ready");
            let evidence = "it has no probe that could fail";
            return vec![Finding::waiting(what, evidence, "wait for the node to report it")];
        };
        let delay = probe.get("initialDelaySeconds").and_then(Value::as_i64).unwrap_or_default();
        vec![Finding::waiting(
            format!("the {} probe of {called} has not succeeded yet", kind.to_lowercase()),
            format!("no failure is known either; its first try is {delay}s after the start"),
            format!("wait, or read its output: {}", self.logs()),
        )]
    }

    /// The last failure of a probe.
    fn failed_probe(&self, kind: &str) -> Option<Finding> {
        let head = format!("{kind} probe ");
        let event = self.case.events.iter().rev().find(|event| {
            objects::text_at(event, "/reason") == "Unhealthy"
                && objects::text_at(event, "/message").starts_with(&head)
                && self.is_named_by(event)
        })?;
        let message = objects::text_at(event, "/message");
        let count = event.get("count").and_then(Value::as_i64).filter(|count| *count > 1);
        let times = count.map(|count| format!(" ({count} times)")).unwrap_or_default();
        Some(Finding::stuck(
            format!("the {} probe of {} fails", kind.to_lowercase(), self.called()),
            format!("{message}{times}"),
            format!("check the probe's port, path and times, and its output: {}", self.logs()),
        ))
    }

    /// The pull of its image, if that is what its node does.
    pub(super) fn image_pull(&self) -> Option<Finding> {
        let pulls = ["Pulling", "Pulled", "Failed"];
        let event = self.case.events.iter().rev().find(|event| {
            pulls.contains(&objects::text_at(event, "/reason")) && self.is_named_by(event)
        })?;
        if objects::text_at(event, "/reason") != "Pulling" {
            return None;
        }
        let since = objects::text_at(event, "/lastTimestamp");
        let since = if since.is_empty() { String::new() } else { format!(" since {since}") };
        Some(Finding::waiting(
            format!("the image of {} is being pulled", self.called()),
            format!("{}{since}", objects::text_at(event, "/message")),
            "wait; if it takes long, look at the size of the image and the node's way to the registry",
        ))
    }

    /// The last failure of its `postStart` hook, for which the node kills it.
    pub(super) fn failed_post_start(&self) -> Option<Finding> {
        let event = self.case.events.iter().rev().find(|event| {
            objects::text_at(event, "/reason") == "FailedPostStartHook" && self.is_named_by(event)
        })?;
        Some(self.explain_post_start(objects::text_at(event, "/message")))
    }

    fn explain_post_start(&self, message: &str) -> Finding {
        Finding::stuck(
            format!("the postStart hook of {} fails", self.called()),
            message,
            "correct lifecycle.postStart: the container is killed for it, and started again",
        )
    }

    /// Whether an event is about this container; an event that names none may be.
    fn is_named_by(&self, event: &Value) -> bool {
        let path = objects::text_at(event, "/involvedObject/fieldPath");
        let name = path.split_once('{').map(|(_, rest)| rest.trim_end_matches('}'));
        name.is_none_or(|name| name == self.name())
    }

    fn advice_for_end(&self, ended: &Value) -> String {
        let code = ended.get("exitCode").and_then(Value::as_i64).unwrap_or_default();
        match (objects::text_at(ended, "/reason"), code) {
            ("OOMKilled", _) => {
                let limit = self.spec.pointer("/resources/limits/memory").and_then(Value::as_str);
                let limit = limit.map(|limit| format!(" (it is {limit})")).unwrap_or_default();
                format!("raise resources.limits.memory{limit}, or make the program use less")
            }
            (_, 127) => "check its command: there is no such program in the image".to_owned(),
            (_, 126) => "check its command: the program may not be executed".to_owned(),
            (_, 0) => "let its program stay in the foreground, or run it as a Job".to_owned(),
            _ => format!("read its last output: {}", self.last_logs()),
        }
    }

    fn logs(&self) -> String {
        let pod = &self.case.pod;
        let (namespace, name) = (objects::namespace(pod), objects::name(pod));
        format!("orchctl logs -n {namespace} {name} -c {}", self.name())
    }

    fn last_logs(&self) -> String {
        // Of a container that runs no more, the current one is the last.
        if self.status.pointer("/state/terminated").is_some() {
            return self.logs();
        }
        format!("{} --previous", self.logs())
    }

    fn describe(&self) -> String {
        let pod = &self.case.pod;
        format!("orchctl describe pod -n {} {}", objects::namespace(pod), objects::name(pod))
    }
}

/// `exit code 137 (OOMKilled)`, with the message that the container left.
pub(super) fn ended_as(ended: &Value) -> String {
    let code = ended.get("exitCode").and_then(Value::as_i64).unwrap_or_default();
    let mut text = format!("exit code {code}");
    let signal = ended.get("signal").and_then(Value::as_i64).filter(|signal| *signal > 0);
    // Shells and runtimes add 128 to the signal that ended a process.
    let signal = signal.or_else(|| code.checked_sub(128).filter(|code| (1..=64).contains(code)));
    let reason = objects::text_at(ended, "/reason");
    let mut words: Vec<String> =
        Some(reason.to_owned()).filter(|text| !text.is_empty()).into_iter().collect();
    words.extend(signal.map(|signal| format!("signal {signal}")));
    if !words.is_empty() {
        text = format!("{text} ({})", words.join(", "));
    }
    match objects::text_at(ended, "/message").trim() {
        "" => text,
        message => format!("{text}: {message}"),
    }
}

/// A ConfigMap, Secret or key that is named and not there.
pub(super) fn missing_source(message: &str) -> Option<Finding> {
    for (word, kind, command) in [
        ("configmap \"", "ConfigMap", "orchctl create configmap"),
        ("secret \"", "Secret", "orchctl create secret generic"),
    ] {
        if let Some((_, rest)) = message.split_once(word)
            && let Some((name, rest)) = rest.split_once('"')
            && rest.contains("not found")
        {
            let name = name.rsplit('/').next().unwrap_or(name);
            return Some(Finding::stuck(
                format!("the {kind} {name} does not exist"),
                message,
                format!("create it ({command} {name} ...), correct its name, or make it optional"),
            ));
        }
    }
    let lower = message.to_lowercase();
    let named = ["couldn't find key", "non-existent secret key", "non-existent config key"];
    named.iter().any(|part| lower.contains(part)).then(|| {
        Finding::stuck(
            "a ConfigMap or Secret lacks a key that the pod names",
            message,
            "add the key to it, correct the key in the pod's spec, or make it optional",
        )
    })
}
