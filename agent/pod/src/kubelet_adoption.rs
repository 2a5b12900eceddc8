//! Adoption of pods that a kubelet or another agent ran: state recovered from their API status and the runtime, and annotations
//! that let a kubelet adopt containers in turn, all without restarts.

use std::hash::Hasher as _;
use std::time::Duration;

use proto_api::Time;
use proto_api::core::v1::{Container, ContainerState, ContainerStatus, PodStatus};

use crate::desired::{DesiredContainer, Fnv32};
use crate::observed::{Exit, InstanceState, ObservedContainer};
use crate::record::{
    Admission, AdoptedInstance, ContainerHealth, ContainerRecord, EndedContainer, Ending, Phase,
    PodRecord, TerminationReason,
};

impl PodRecord {
    /// The record of a pod: its journal record updated by the status shown since, or, without a journal record, what the status
    /// implies. Parts of the status that the runtime's `instances` contradict are ignored.
    pub fn recover(
        recorded: Option<Self>,
        status: &PodStatus,
        instances: &[ObservedContainer],
    ) -> Self {
        let mut shown = Self::adopt(status);
        for (name, known) in &mut shown.containers {
            let of_it = instances.iter().filter(|instance| instance.name == *name);
            if let Some(newest) = of_it.max_by_key(|instance| instance.attempt) {
                known.correct(newest);
            }
        }
        match recorded {
            Some(mut record) => {
                record.apply_container_status(shown);
                record
            }
            None => shown,
        }
    }

    /// The same for a pod from the API. If the API shows it as ended although this agent did not end it, it gets `grace` from
    /// `now` (since boot) to stop.
    pub fn recover_api_pod(
        recorded: Option<Self>,
        status: &PodStatus,
        instances: &[ObservedContainer],
        (grace, now): (Duration, Duration),
    ) -> Self {
        let mut recorded = recorded;
        if let Some(record) = &mut recorded {
            record.apply_end(status, grace, now);
        }
        let is_recorded = recorded.is_some();
        let mut record = Self::recover(recorded, status, instances);
        if let Some(ending) = record.ending.as_mut().filter(|_| !is_recorded) {
            ending.deadline = now.saturating_add(grace);
        }
        record
    }

    /// The same for a static pod. What the node decided about it, a refusal or its end, lapses with the agent's process: it has
    /// the same uid at every start, and is not created again.
    pub fn recover_static_pod(
        recorded: Option<Self>,
        status: &PodStatus,
        instances: &[ObservedContainer],
    ) -> Self {
        let was_over = recorded.as_ref().is_some_and(Self::is_over_by_node);
        let recorded = recorded.map(Self::without_node_decision);
        if !was_over && !shows_node_decision(status) {
            return Self::recover(recorded, status, instances);
        }
        // The start time stands for an admission, whose resources were released.
        let shown = PodStatus { phase: String::new(), start_time: None, ..status.clone() };
        Self::recover(recorded, &shown, instances)
    }

    /// Whether the pod does not run because the node refused or ended it.
    fn is_over_by_node(&self) -> bool {
        let is_refused = matches!(self.admission, Some(Admission::Refused { .. }));
        is_refused || (self.phase.is_terminal() && self.is_ended_by_node())
    }

    fn is_ended_by_node(&self) -> bool {
        let why = self.ending.as_ref().map(|ending| &ending.why);
        matches!(why, Some(TerminationReason::Evicted { .. }))
    }

    /// The record without a decision of the node against the pod. A pod that is over has to be admitted again.
    fn without_node_decision(mut self) -> Self {
        if self.is_over_by_node() {
            (self.admission, self.accepted_at) = (None, 0);
            (self.accepted_boot, self.active_before) = Default::default();
            self.phase = Phase::default();
        }
        if self.is_ended_by_node() {
            self.ending = None;
        }
        self
    }

    /// Derives a record from the status of the API object. Used without a journal record, on the first start on a node that a
    /// kubelet ran.
    pub fn adopt(status: &PodStatus) -> Self {
        let started_at = status.start_time.as_ref().map_or(0, |t| t.unix().unwrap_or(0));
        let mut record =
            Self { accepted_at: started_at, phase: Phase::parse(&status.phase), ..Self::default() };
        // A finished pod may have no sandbox left that shows its addresses.
        record.ips = status.pod_ips.iter().map(|ip| ip.ip.clone()).collect();
        if started_at != 0 {
            record.admission = Some(Admission::Admitted);
        }
        for condition in &status.conditions {
            let since = condition.last_transition_time.unix().unwrap_or(0);
            record.conditions.insert(condition.type_.clone(), (condition.status.clone(), since));
        }
        let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
        let statuses = statuses.chain(&status.ephemeral_container_statuses);
        for status in statuses.filter(|s| !s.container_id.is_empty()) {
            record.containers.insert(status.name.clone(), Box::new(ContainerRecord::adopt(status)));
        }
        if record.phase.is_terminal() {
            record.ending =
                Some(Ending { why: TerminationReason::Completed, deadline: Duration::ZERO });
        }
        record
    }

    /// Advances the record of a static pod to the progress that its mirror shows; never backwards. A decision of the node that the
    /// mirror still shows was that of an earlier process.
    pub fn apply_mirror(&mut self, status: &PodStatus) {
        if !shows_node_decision(status) {
            self.progress(&Self::adopt(status));
        }
    }

    fn progress(&mut self, shown: &Self) {
        self.phase = self.phase.advance(shown.phase);
        if self.ending.is_none() {
            self.ending.clone_from(&shown.ending);
        }
        if self.admission.is_none() {
            (self.admission, self.accepted_at) = (shown.admission.clone(), shown.accepted_at);
        }
    }

    /// Applies an end of the pod that another client wrote: a final phase stays, and running containers are stopped within
    /// `grace` of `now` (since boot), as the kubelet does.
    pub fn apply_end(&mut self, status: &PodStatus, grace: Duration, now: Duration) {
        let phase = Phase::parse(&status.phase);
        if !phase.is_terminal() || self.phase.is_terminal() {
            return;
        }
        self.phase = phase;
        let why = match phase {
            Phase::Failed => {
                let (reason, message) = (status.reason.clone(), status.message.clone());
                TerminationReason::Evicted { reason, message }
            }
            _ => TerminationReason::Completed,
        };
        let deadline = now.saturating_add(grace);
        self.ending.get_or_insert(Ending { why, deadline });
    }

    /// Records the status that another client gave to a condition of this agent, and its time in seconds since 1970; the next
    /// status written is a transition from it.
    pub fn apply_condition(&mut self, kind: String, status: String, since: i64) {
        self.conditions.insert(kind, (status, since));
    }

    /// Applies what the API object showed since the record was written, because another agent may have run the pod meanwhile. The
    /// most recent change wins; changes of this agent that were not shown yet stay.
    pub fn apply_status(&mut self, status: &PodStatus) {
        self.apply_container_status(Self::adopt(status));
    }

    fn apply_container_status(&mut self, shown: Self) {
        self.progress(&shown);
        let mut superseded = false;
        for (kind, (status, since)) in shown.conditions {
            let known = self.conditions.get(&kind);
            if known.is_some_and(|(_, before)| *before < since) {
                superseded = true;
                self.conditions.insert(kind, (status, since));
            }
        }
        for (name, theirs) in shown.containers {
            let known = self.containers.entry(name).or_default();
            if known.attempt < theirs.attempt {
                **known = ContainerRecord { backoff: known.backoff, ..*theirs };
            } else if superseded && known.health.id == theirs.health.id {
                known.health.readiness = theirs.health.readiness;
                known.health.startup = known.health.startup.or(theirs.health.startup);
            }
        }
    }
}

/// Whether a status shows that the node refused or ended the pod; a pod that failed by itself has no reason.
fn shows_node_decision(status: &PodStatus) -> bool {
    Phase::parse(&status.phase) == Phase::Failed && !status.reason.is_empty()
}

impl ContainerRecord {
    /// Corrects what a status says by the newest instance in the runtime: no attempt is later than that of the newest
    /// instance, and one that runs has not ended. The kubelet also takes restart counts from the runtime wherever it has an instance.
    fn correct(&mut self, newest: &ObservedContainer) {
        let runs = matches!(newest.state, InstanceState::Running { .. });
        if self.attempt > Some(newest.attempt) {
            *self = Self { attempt: Some(newest.attempt), ..Self::default() };
        } else if self.attempt == Some(newest.attempt) && runs {
            self.ended = None;
        }
    }

    /// Whether an instance was created from the container's current definition.
    pub(crate) fn is_made_from(
        &self,
        instance: &ObservedContainer,
        container: &DesiredContainer,
    ) -> bool {
        match &self.taken_over {
            _ if !instance.hash.is_empty() => instance.hash == container.hash,
            Some(taken) if taken.id == instance.id => taken.hash == container.hash,
            // Seen for the first time.
            _ => true,
        }
    }

    /// Records the definition of an instance that another agent created, once.
    pub(crate) fn record_adopted(
        &mut self,
        container: &DesiredContainer,
        instance: &ObservedContainer,
    ) {
        let known = self.taken_over.as_ref().is_some_and(|taken| taken.id == instance.id);
        if instance.hash.is_empty() && !known {
            let (id, hash) = (instance.id.clone(), container.hash.clone());
            self.taken_over = Some(AdoptedInstance { id, hash });
        }
    }

    fn adopt(status: &ContainerStatus) -> Self {
        let ended = |state: &ContainerState| {
            let terminated = state.terminated.as_ref()?;
            let exit = Exit {
                code: terminated.exit_code,
                reason: terminated.reason.clone(),
                message: terminated.message.clone(),
                started_at: nanoseconds(&terminated.started_at),
                finished_at: nanoseconds(&terminated.finished_at),
            };
            let id = terminated.container_id.rsplit("://").next().unwrap_or_default();
            let (image, image_id) = (status.image.clone(), status.image_id.clone());
            Some(EndedContainer { id: id.to_owned(), image, image_id, exit })
        };
        let (mut newest, mut previous) = (ended(&status.state), ended(&status.last_state));
        let id = status.container_id.rsplit("://").next().unwrap_or_default();
        // While a restart is pending, `lastState` describes the end of the newest instance.
        if previous.as_ref().is_some_and(|previous| previous.id == id) {
            newest = newest.or(previous.take());
        }
        Self {
            attempt: Some(u32::try_from(status.restart_count).unwrap_or(0)),
            ended: newest,
            previous,
            health: ContainerHealth {
                id: id.to_owned(),
                startup: status.started.filter(|started| *started),
                readiness: Some(status.ready),
                ..ContainerHealth::default()
            },
            ..Self::default()
        }
    }
}

/// Nanoseconds since 1970; 0 for an unset time.
fn nanoseconds(time: &Time) -> i64 {
    time.unix().unwrap_or(0).saturating_mul(1_000_000_000)
}

/// The container hash with which kubelets 1.16 to 1.30 detect a changed definition: 32-bit FNV-1a over Go's `%#v` print of the
/// container's JSON bytes, in hexadecimal without leading zeros. A kubelet restarts an instance whose annotation differs.
pub fn kubelet_hash(container: &Container) -> String {
    let mut hasher = Fnv32::default();
    hasher.write(listing(&json(container)).as_bytes());
    format!("{:x}", hasher.finish())
}

/// A byte slice as Go's `%#v` prints it.
fn listing(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("([]uint8)[{}]", bytes.join(" "))
}

/// A container's JSON as Go's encoder writes it: fields in declaration order, `<`, `>`, `&`, U+2028 and U+2029 escaped, control
/// characters as `\u00xx` except line feed, carriage return and tab.
fn json(container: &Container) -> Vec<u8> {
    // A container holds no raw JSON, the only value that could fail to encode.
    let text = serde_json::to_string(container).unwrap_or_default();
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(char)));
            }
            '\\' => match chars.next() {
                Some('b') => out.push_str("\\u0008"),
                Some('f') => out.push_str("\\u000c"),
                escaped => out.extend(std::iter::once(char).chain(escaped)),
            },
            _ => out.push(char),
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{ConfigState, DesiredPod, PodSource};
    use crate::observed::{Now, ObservedPod, ObservedSandbox};

    #[test]
    fn the_json_is_that_of_gos_encoder() {
        let container = Container {
            name: "a".into(),
            args: vec!["<&>\u{2028}\u{8}\u{c}\n\u{1}\"\\".into()],
            tty: true,
            ..Container::default()
        };
        let expect = concat!(
            r#"{"name":"a","args":["\u003c\u0026\u003e\u2028\u0008\u000c\n\u0001\"\\"],"#,
            r#""resources":{},"tty":true}"#
        );
        assert_eq!(String::from_utf8(json(&container)).expect("text"), expect);
    }

    #[test]
    fn a_pod_that_another_shows_as_over_is_ended_within_its_grace() {
        let (grace, now) = (Duration::from_secs(30), Duration::from_secs(100));
        let over = |phase: &str| PodStatus {
            phase: phase.into(),
            reason: "NodeLost".into(),
            message: "m".into(),
            ..PodStatus::default()
        };
        let lost = TerminationReason::Evicted { reason: "NodeLost".into(), message: "m".into() };
        let table = [
            ("Pending", Phase::Running, None),
            ("Running", Phase::Running, None),
            ("Failed", Phase::Failed, Some(lost)),
            ("Succeeded", Phase::Succeeded, Some(TerminationReason::Completed)),
        ];
        for (shown, phase, why) in table {
            let mut record = PodRecord { phase: Phase::Running, ..PodRecord::default() };
            record.apply_end(&over(shown), grace, now);
            assert_eq!(record.phase, phase, "{shown}");
            let ending = why.map(|why| Ending { why, deadline: now + grace });
            assert_eq!(record.ending, ending, "{shown}");
            // A restarted agent gives it the same time.
            for recorded in
                [None, Some(PodRecord { phase: Phase::Running, ..PodRecord::default() })]
            {
                let record = PodRecord::recover_api_pod(recorded, &over(shown), &[], (grace, now));
                let deadline = record.ending.map(|ending| ending.deadline);
                assert_eq!(deadline, record.phase.is_terminal().then_some(now + grace), "{shown}");
            }
        }
        // A pod that ended here keeps its result.
        let ending = Ending { why: TerminationReason::Completed, deadline: now };
        let ended =
            PodRecord { phase: Phase::Succeeded, ending: Some(ending), ..PodRecord::default() };
        let mut record = ended.clone();
        record.apply_end(&over("Failed"), grace, now);
        assert_eq!(record, ended);
    }

    fn terminated() -> Option<TerminationReason> {
        Some(TerminationReason::Evicted { reason: "Terminated".into(), message: "m".into() })
    }

    /// The record of a static pod of which one sandbox was stopped.
    fn static_record(why: Option<TerminationReason>, phase: Phase) -> PodRecord {
        let known = ContainerRecord { attempt: Some(2), ..ContainerRecord::default() };
        PodRecord {
            admission: Some(Admission::Admitted),
            accepted_at: 1,
            phase,
            ending: why.map(|why| Ending { why, deadline: Duration::ZERO }),
            sandboxes_stopped: [0].into(),
            containers: [("c".to_owned(), Box::new(known))].into(),
            ..PodRecord::default()
        }
    }

    fn static_status(phase: &str, reason: &str) -> PodStatus {
        let (phase, reason, start_time) = (phase.into(), reason.into(), Some(Time::from_unix(1)));
        PodStatus { phase, reason, start_time, ..PodStatus::default() }
    }

    #[test]
    fn what_the_node_decided_about_a_static_pod_lapses_with_the_process() {
        use Phase::{Failed, Pending, Running, Succeeded};
        let refused = Admission::Refused { reason: "NodeShutdown".into(), message: "m".into() };
        let refused = PodRecord { admission: Some(refused), ..static_record(None, Failed) };
        let completed = Some(TerminationReason::Completed);
        let lost = Some(TerminationReason::SandboxLost);
        // What the journal has; whether the pod may run, has to be admitted, and its phase afterwards.
        let table = [
            ("ended", static_record(terminated(), Failed), true, true, Pending),
            ("being ended", static_record(terminated(), Running), true, false, Running),
            ("refused", refused, true, true, Pending),
            ("runs", static_record(None, Running), true, false, Running),
            ("done", static_record(completed, Succeeded), false, false, Succeeded),
            ("failed", static_record(lost, Failed), false, false, Failed),
        ];
        for (case, record, may_run, is_new, phase) in table {
            let reason = if is_new { "Terminated" } else { "" };
            let shown = static_status(record.phase.as_str(), reason);
            // The mirror shows it, or still shows that the pod runs, or is not known.
            for shown in [shown, static_status("Running", ""), PodStatus::default()] {
                let after = PodRecord::recover_static_pod(Some(record.clone()), &shown, &[]);
                let case = format!("{case}, shown as {}", shown.phase);
                assert_eq!(after.ending.is_none(), may_run, "{case}");
                assert_eq!(after.admission.is_none(), is_new, "{case}");
                assert_eq!(after.accepted_at == 0, is_new, "{case}");
                assert_eq!(after.phase, phase, "{case}");
                assert_eq!(after.containers["c"].attempt, Some(2), "{case}");
                let mut seen = after.clone();
                seen.apply_mirror(&shown);
                assert_eq!(seen.ending, after.ending, "{case}");
            }
        }
        // A pod from the API stays as it ended.
        let ended = static_record(terminated(), Failed);
        assert_eq!(PodRecord::recover(Some(ended.clone()), &PodStatus::default(), &[]), ended);
    }

    #[test]
    fn a_mirror_ends_its_static_pod_only_if_the_pod_ended_by_itself() {
        for (reason, may_run) in [("Terminated", true), ("", false)] {
            let shown = static_status("Failed", reason);
            // At the start of an agent without a journal, and later.
            let after = PodRecord::recover_static_pod(None, &shown, &[]);
            assert_eq!((after.ending.is_none(), after.admission.is_none()), (may_run, may_run));
            let mut running = static_record(None, Phase::Running);
            running.apply_mirror(&shown);
            assert_eq!(running.ending.is_none(), may_run, "{reason}");
        }
    }

    /// After a shutdown the stopped sandbox is still listed: it stands for the admission before.
    #[test]
    fn a_static_pod_is_admitted_again_after_its_end() {
        let ended = static_record(terminated(), Phase::Failed);
        let record = PodRecord::recover_static_pod(Some(ended), &PodStatus::default(), &[]);
        let source = PodSource::Static;
        let pod = proto_api::core::v1::Pod::default();
        let desired = DesiredPod::from_pod(&pod, source, "", &[], |_| ConfigState::Ready);
        let sandbox = |attempt| ObservedSandbox { attempt, ..ObservedSandbox::default() };
        for (attempt, expect) in [(0, None), (1, Some(Admission::Admitted))] {
            let observed =
                ObservedPod { sandboxes: vec![sandbox(attempt)], ..ObservedPod::default() };
            let mut record = record.clone();
            record.observe(&desired, &observed, Now::default());
            assert_eq!(record.admission, expect, "sandbox {attempt}");
        }
    }

    #[test]
    fn a_status_that_the_runtime_contradicts_is_not_believed() {
        let instance = |state| ObservedContainer {
            name: "c".into(),
            id: "i1".into(),
            attempt: 1,
            sandbox_id: "s".into(),
            image: "image:1".into(),
            image_id: String::new(),
            hash: String::new(),
            message_file: None,
            state,
        };
        let running = instance(InstanceState::Running { started_at: 5 });
        let exited = instance(InstanceState::Exited(Exit::default()));
        let shown = |id: &str, restart_count, over: bool| {
            let mut status = ContainerStatus {
                name: "c".into(),
                container_id: format!("containerd://{id}"),
                restart_count,
                ..ContainerStatus::default()
            };
            status.state.terminated = over.then(Default::default);
            PodStatus { container_statuses: vec![status], ..PodStatus::default() }
        };
        // The attempt that is adopted, and whether it has ended.
        let table = [
            ("true", &running, shown("i1", 1, false), 1, false),
            ("more restarts of one that runs", &running, shown("i1", 9, false), 1, false),
            ("another than the one that runs", &running, shown("i9", 9, false), 1, false),
            ("the end of one that runs", &running, shown("i1", 1, true), 1, false),
            ("more restarts of one that has ended", &exited, shown("i1", 9, true), 1, false),
            ("more restarts of one before it", &exited, shown("i0", 5, true), 1, false),
            ("one that is not there", &exited, shown("i9", 9, true), 1, false),
            ("ended", &exited, shown("i1", 1, true), 1, true),
        ];
        for (case, instance, status, attempt, ended) in table {
            let mut recorded = PodRecord::default();
            let known = ContainerRecord { attempt: Some(1), ..ContainerRecord::default() };
            recorded.containers.insert("c".into(), Box::new(known));
            for recorded in [None, Some(recorded)] {
                let has_record = recorded.is_some();
                let record = PodRecord::recover(recorded, &status, std::slice::from_ref(instance));
                let known = &record.containers["c"];
                assert_eq!(known.attempt, Some(attempt), "{case}");
                // A recorded attempt is not changed by the status.
                let is_reported = ended && (!has_record || attempt != 1);
                assert_eq!(known.ended.is_some(), is_reported, "{case}");
            }
        }
    }

    #[test]
    fn bytes_are_listed_with_their_type() {
        assert_eq!(listing(b"{}"), "([]uint8)[123 125]");
    }

    /// Containers as Kubernetes' API server 1.20 returned them, and the annotations that its kubelet wrote.
    const GOLDEN: [(&str, &str); 3] = [
        (
            r#"{"name":"i","image":"docker.io/library/busybox:1.29","command":["true"],"resources":{},"volumeMounts":[{"name":"default-token-qfckk","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}"#,
            "4d9cf8c7",
        ),
        (
            r#"{"name":"a","image":"docker.io/library/busybox:1.29","command":["sh","-c","trap 'echo bye > /dev/termination-log; exit 3' TERM; while true; do cat /cfg/key; sleep 1; done"],"args":["<&>","tab\there"],"ports":[{"name":"http","containerPort":80,"protocol":"TCP"},{"hostPort":5353,"containerPort":53,"protocol":"UDP"}],"envFrom":[{"prefix":"P_","configMapRef":{"name":"cfg"}}],"env":[{"name":"X","value":"a&b"},{"name":"POD","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}},{"name":"CPU","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"0"}}},{"name":"W","valueFrom":{"secretKeyRef":{"name":"sec","key":"word","optional":true}}}],"resources":{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"100m","memory":"32Mi"}},"volumeMounts":[{"name":"cfg","mountPath":"/cfg"},{"name":"sec","readOnly":true,"mountPath":"/sec"},{"name":"empty","mountPath":"/e","subPath":"sub"},{"name":"mem","mountPath":"/m"},{"name":"proj","mountPath":"/proj"},{"name":"down","mountPath":"/down"},{"name":"host","mountPath":"/h"},{"name":"default-token-qfckk","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"exec":{"command":["true"]},"initialDelaySeconds":1,"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":5},"readinessProbe":{"exec":{"command":["cat","/cfg/key"]},"timeoutSeconds":1,"periodSeconds":2,"successThreshold":1,"failureThreshold":3},"startupProbe":{"exec":{"command":["true"]},"timeoutSeconds":1,"periodSeconds":1,"successThreshold":1,"failureThreshold":3},"lifecycle":{"postStart":{"exec":{"command":["true"]}},"preStop":{"exec":{"command":["true"]}}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"capabilities":{"add":["NET_ADMIN"],"drop":["MKNOD"]},"seLinuxOptions":{"level":"s0"},"runAsUser":0,"runAsNonRoot":false,"readOnlyRootFilesystem":false,"allowPrivilegeEscalation":true},"stdin":true}"#,
            "ede4579e",
        ),
        (
            r#"{"name":"b","image":"docker.io/library/nginx:1.14-alpine","workingDir":"/","resources":{},"volumeMounts":[{"name":"default-token-qfckk","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/","port":80,"scheme":"HTTP","httpHeaders":[{"name":"H","value":"v"}]},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"readinessProbe":{"tcpSocket":{"port":80},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}"#,
            "dc933124",
        ),
    ];

    #[test]
    fn the_hash_is_the_one_that_the_other_agent_wrote() {
        for (json, expect) in GOLDEN {
            let container: Container = serde_json::from_str(json).expect("container");
            assert_eq!(kubelet_hash(&container), expect, "{}", container.name);
        }
    }
}
