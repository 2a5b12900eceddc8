//! The operations of a pod: calls to the runtime, to volumes and to the API server, each in a task
//! of its own, one at a time per object. The results are returned; nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::{
    MountedVolumes, ReportError, Reported, StatusChange, UnmountError, VolumeError,
};
use agent_journal::CommitHandle;
use agent_journal::active_pods::ActivityMark;
use agent_pod::plan::Action;
use agent_runtime::RuntimeError;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Pod, PodStatus};
use proto_daemon::panics::{self, Panicked};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::status_publisher::StatusWrite;
use crate::action_context::ActionContext;
use crate::action_result::{ActionFailure, ActionResult};
use crate::execute_action::act;
use crate::in_flight::{OperationKey, OperationsInFlight, operation_key};
use crate::pod_context::PodContext;

/// How long a status waits for the journal to commit results of probes and hooks. An agent that is
/// killed between the two would start with the API's status and without its reasons; a failing disk
/// does not delay the status longer than this.
const RECORD_WAIT: Duration = Duration::from_secs(1);

/// Starts the operations of a pod.
pub struct PodDriver {
    shared: Arc<PodContext>,
    in_flight: OperationsInFlight,
    under_way: JoinSet<Result<FinishedOperation, Panicked>>,
    panicked: Option<Panicked>,
    /// The time since boot at which running containers are killed, set once the pod terminates;
    /// operations in flight read it.
    ending: watch::Sender<Option<Duration>>,
}

/// An operation that has ended.
pub struct FinishedOperation {
    pub key: OperationKey,
    /// The deadline of a stop, as it was when the stop started.
    deadline: Option<Duration>,
    pub outcome: OperationResult,
}

/// What an operation in flight ends with.
pub enum OperationResult {
    ActionDone(Action, Result<ActionResult, ActionFailure>, Duration),
    /// Not started, because the pod is terminating.
    Skipped,
    Mounted(Result<MountedVolumes, VolumeError>),
    Unmounted(Result<(), UnmountError>),
    StatusWritten(Box<PodStatus>, Result<Reported, ReportError>),
    Relisted(u64, Result<PodOnNode, RuntimeError>),
}

impl PodDriver {
    pub fn new(shared: Arc<PodContext>) -> Self {
        Self {
            shared,
            in_flight: OperationsInFlight::default(),
            under_way: JoinSet::new(),
            panicked: None,
            ending: watch::Sender::new(None),
        }
    }

    pub fn in_flight(&self) -> &OperationsInFlight {
        &self.in_flight
    }

    /// Sets the time at which running containers are killed, for operations in flight too.
    pub fn set_ending(&self, at: Option<Duration>) {
        self.ending.send_replace(at);
    }

    /// Follows the time at which running containers are killed.
    pub fn ending(&self) -> watch::Receiver<Option<Duration>> {
        self.ending.subscribe()
    }

    /// Notes the panic of an operation, or of a part of the pod's task.
    pub fn record_panic(&mut self, panicked: Option<Panicked>) {
        self.panicked = self.panicked.take().or(panicked);
    }

    pub fn take_panic(&mut self) -> Option<Panicked> {
        self.panicked.take()
    }

    /// Waits for an operation to end; for ever while none is under way. `None` if it panicked or
    /// was cancelled. Cancel safe.
    pub async fn next_finished(&mut self) -> Option<FinishedOperation> {
        match self.under_way.join_next().await {
            Some(Ok(Ok(finished))) => {
                self.in_flight.end(&finished.key, finished.deadline);
                Some(finished)
            }
            Some(Ok(Err(panicked))) => {
                self.panicked = Some(panicked);
                None
            }
            Some(Err(error)) => {
                tracing::error!(%error, "an operation of the pod was cancelled; the next plan repeats it");
                None
            }
            None => std::future::pending().await,
        }
    }

    /// Starts an action, after `commit` is durable.
    pub fn start_action(
        &mut self,
        mut action: Action,
        context: ActionContext,
        commit: Option<CommitHandle>,
    ) {
        let deadline = match &action {
            Action::StopContainer { deadline, .. } => Some(*deadline),
            _ => None,
        };
        let key = operation_key(&action);
        if let Action::StopContainer { hook, .. } = &mut action {
            // A stop with an earlier deadline does not run the hook again.
            *hook &= !self.in_flight.has(&key);
        }
        let shared = self.shared.clone();
        self.spawn(key, deadline, async move {
            if let Some(commit) = commit {
                commit.durable().await;
            }
            if action.is_start() && context.ending.borrow().is_some() {
                return OperationResult::Skipped;
            }
            let began = Instant::now();
            match action {
                Action::MountVolumes => OperationResult::Mounted(
                    shared.volumes.set_up(&context.pod, &context.objects).await,
                ),
                Action::UnmountVolumes => {
                    OperationResult::Unmounted(shared.volumes.tear_down(&context.pod).await)
                }
                action => {
                    let result = act(&shared, &context, &action).await;
                    OperationResult::ActionDone(action, result, began.elapsed())
                }
            }
        });
    }

    /// Starts to bring mounted volumes up to date.
    pub fn refresh_volumes(&mut self, context: ActionContext) {
        let shared = self.shared.clone();
        self.spawn(OperationKey::Volumes, None, async move {
            OperationResult::Mounted(shared.volumes.set_up(&context.pod, &context.objects).await)
        });
    }

    /// Starts to list the pod's sandboxes and containers.
    pub fn relist(&mut self, uid: String, epoch: u64) {
        let runtime = self.shared.runtime.clone();
        self.spawn(OperationKey::Relist, None, async move {
            OperationResult::Relisted(epoch, runtime.pod(&uid).await)
        });
    }

    /// Starts to write a status, once the record with its reasons is durable.
    pub fn write_status(
        &mut self,
        pod: Arc<Pod>,
        write: Box<StatusWrite>,
        record: Option<CommitHandle>,
    ) {
        let reports = self.shared.reports.clone();
        self.spawn(OperationKey::Status, None, async move {
            if let Some(record) = record {
                let _late = tokio::time::timeout(RECORD_WAIT, record.durable()).await;
            }
            let StatusWrite { from, to, whole } = *write;
            let change = StatusChange { from: &from, to: &to, whole };
            let result = reports.status(&pod, change).await;
            OperationResult::StatusWritten(Box::new(to), result)
        });
    }

    fn spawn(
        &mut self,
        key: OperationKey,
        deadline: Option<Duration>,
        operation: impl Future<Output = OperationResult> + Send + 'static,
    ) {
        self.in_flight.begin(key.clone(), deadline);
        let finished = async move { FinishedOperation { key, deadline, outcome: operation.await } };
        self.under_way.spawn(ActivityMark::current().wrap(panics::isolate(finished)));
    }
}
