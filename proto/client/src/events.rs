//! Events about objects. Recording never blocks and never fails: a bounded queue, a task that writes, and rules ([`correlate`]) that aggregate repeated
//! events and drop floods.

pub mod correlate;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto_api::core::v1::{Event, EventSource, ObjectReference};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::ObjectMeta;
use proto_api::{MicroTime, Time};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::rate::Rate;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::ClientError;
use crate::params::{Patch, WriteParams};
use correlate::{Correlator, EventDecision};

/// Events that wait to be written; more are dropped and counted. A full node's pods, all made at once.
const QUEUE_LEN_MAX: usize = 1024;
/// From this queue length on, normal events are written even while the program is busy.
const HELD_LEN_MAX: usize = QUEUE_LEN_MAX / 2;
/// Longest delay of a normal event while the program is busy.
const HELD_MAX: Duration = Duration::from_secs(10);
/// Interval at which that is checked.
const HELD_LOOK: Duration = Duration::from_millis(250);
/// Attempts for one event, with growing pauses: some ten seconds in all.
const TRIES_MAX: u32 = 7;
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(5) };

/// Records events. Cheap to clone; all clones feed one task.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Warnings are written before normal events.
    warnings: mpsc::Sender<QueuedEvent>,
    normal: mpsc::Sender<QueuedEvent>,
    dropped: Arc<AtomicU64>,
}

/// An event and the time of its report.
type QueuedEvent = (EventReport, SystemTime);

/// Whether the program is busy, so that normal events wait.
pub type IsBusy = Box<dyn Fn() -> bool + Send + Sync>;

/// Writes events; run it as a task with [`Writer::run`].
pub struct Writer {
    event_writer: EventWriter,
    warnings: mpsc::Receiver<QueuedEvent>,
    normal: mpsc::Receiver<QueuedEvent>,
    is_busy: IsBusy,
    rate: Rate,
}

/// Makes a recorder and its writer. `component` and `host` are the event's source, for example `orchlet` and the node's name.
pub fn recorder(client: Client, component: &str, host: &str) -> (Recorder, Writer) {
    let (to_warnings, warnings) = mpsc::channel(QUEUE_LEN_MAX);
    let (to_normal, normal) = mpsc::channel(QUEUE_LEN_MAX);
    let source = EventSource { component: component.to_owned(), host: host.to_owned() };
    let event_writer = EventWriter { client, source };
    let recorder = Recorder { warnings: to_warnings, normal: to_normal, dropped: Arc::default() };
    let is_busy = Box::new(|| false);
    (recorder, Writer { event_writer, warnings, normal, is_busy, rate: Rate::new(0, 0) })
}

impl Recorder {
    /// Records an event about an object. `reason` is one word that programs match, `message` a sentence for people.
    pub fn event(
        &self,
        about: &ObjectReference,
        kind: EventKind,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        let (reason, message) = (reason.into(), message.into());
        let said = EventReport { about: about.clone(), kind, reason, message };
        let queue = match kind {
            EventKind::Normal => &self.normal,
            EventKind::Warning => &self.warnings,
        };
        if queue.try_send((said, SystemTime::now())).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(dropped, "the queue of events is full; events are dropped");
            }
        }
    }

    /// Records an event that was composed before.
    pub fn record(&self, said: EventReport) {
        self.event(&said.about, said.kind, said.reason, said.message);
    }

    /// Events dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Writer {
    /// Delays normal events while the program is busy: some seconds, and only while few are queued.
    #[must_use]
    pub fn yielding(self, is_busy: IsBusy) -> Self {
        Self { is_busy, ..self }
    }

    /// Limits the rate of writes; further events wait, warnings are written first.
    #[must_use]
    pub fn paced(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// Writes until drained or until every recorder is dropped.
    pub async fn run(self, drain: DrainWatch) {
        let Self { event_writer, mut warnings, mut normal, is_busy, mut rate } = self;
        let mut correlator = Correlator::default();
        let (mut held, began) = (None, Instant::now());
        loop {
            tokio::select! {
                biased;
                () = drain.asked() => return,
                () = tokio::time::sleep(rate.wait(began.elapsed())) => {}
            }
            let calm = async {
                hold(&normal, &is_busy, &mut held).await;
                normal.recv().await
            };
            // Cancel safe: recv removes an event in its last step, and an interrupted wait begins again.
            let (said, at) = tokio::select! {
                biased;
                () = drain.asked() => return,
                Some(spoken) = warnings.recv() => spoken,
                Some(spoken) = calm => spoken,
                else => return,
            };
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let verdict = correlator.take(said, at);
            if verdict == EventDecision::Silence {
                continue;
            }
            rate.take(began.elapsed());
            tokio::select! {
                () = drain.asked() => return,
                () = event_writer.write(verdict, at) => {}
            }
        }
    }
}

/// Waits while the program is busy; `held` is the time since which events have waited for that.
async fn hold(waiting: &mpsc::Receiver<QueuedEvent>, is_busy: &IsBusy, held: &mut Option<Instant>) {
    while is_busy() {
        let since = *held.get_or_insert_with(Instant::now);
        if waiting.is_empty() || waiting.len() >= HELD_LEN_MAX || since.elapsed() >= HELD_MAX {
            return;
        }
        tokio::time::sleep(HELD_LOOK).await;
    }
    *held = None;
}

/// The client and source of the events.
struct EventWriter {
    client: Client,
    source: EventSource,
}

impl EventWriter {
    async fn write(&self, verdict: EventDecision, now: Duration) {
        for failure in 1..=TRIES_MAX {
            let Err(error) = self.write_once(&verdict, now).await else { return };
            if !error.is_retryable() || failure == TRIES_MAX {
                tracing::debug!(error = chain(&error), "cannot write an event; it is dropped");
                return;
            }
            tokio::time::sleep(RETRY.delay(failure, rand::random())).await;
        }
    }

    async fn write_once(&self, verdict: &EventDecision, now: Duration) -> Result<(), ClientError> {
        let (said, name, count) = match verdict {
            EventDecision::Silence => return Ok(()),
            EventDecision::Create { said, name } => (said, name, 1),
            EventDecision::Count { said, name, count } => (said, name, *count),
        };
        let api = self.client.within::<Event>(namespace(&said.about));
        if count > 1 {
            let seen =
                Time::from_unix(i64::try_from(now.as_secs()).unwrap_or(i64::MAX)).to_string();
            let change = json!({"count": count, "lastTimestamp": seen, "message": said.message});
            match api.patch(name, &Patch::Strategic(change), &WriteParams::default()).await {
                // It has expired: it is created again, with its count.
                Err(error) if error.is_not_found() => {}
                done => return done.map(drop),
            }
        }
        let event = event(said, name, count, &self.source, now);
        match api.create(&event, &WriteParams::default()).await {
            // An earlier attempt succeeded after all.
            Err(error) if error.is_already_exists() => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Events on objects without a namespace live in `default`.
fn namespace(about: &ObjectReference) -> &str {
    if about.namespace.is_empty() { "default" } else { &about.namespace }
}

fn event(said: &EventReport, name: &str, count: i32, source: &EventSource, now: Duration) -> Event {
    let time = Time::from_unix(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    Event {
        metadata: ObjectMeta {
            name: name.to_owned(),
            namespace: namespace(&said.about).to_owned(),
            ..ObjectMeta::default()
        },
        involved_object: said.about.clone(),
        reason: said.reason.to_string(),
        message: said.message.clone(),
        source: source.clone(),
        first_timestamp: time,
        last_timestamp: time,
        count,
        type_: said.kind.as_str().to_owned(),
        event_time: MicroTime::UNSET,
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proto_api::core::v1::Pod;
    use proto_api::event_report::reference;
    use proto_daemon::drain::Drain;

    use super::*;
    use crate::testing::{PATIENCE, ReceivedRequest, Server, names};

    fn pod() -> ObjectReference {
        let metadata = ObjectMeta {
            name: "web".into(),
            namespace: "a".into(),
            uid: "u".into(),
            ..ObjectMeta::default()
        };
        reference(&Pod { metadata, ..Pod::default() }, names())
    }

    #[tokio::test]
    async fn an_event_is_created_then_counted() {
        let mut server = Server::plain().await;
        let (recorder, writer) = recorder(server.client(), "orchlet", "n1");
        let drain = Drain::default();
        tokio::spawn(writer.run(drain.watch()));
        recorder.event(&pod(), EventKind::Warning, "BackOff", "restarting");
        recorder.event(&pod(), EventKind::Warning, "BackOff", "restarting");

        let asked = server.asked().await;
        assert_eq!(asked.line, "POST /api/v1/namespaces/a/events");
        let event: Event =
            proto_api::object::from_protobuf_envelope(&asked.body, names()).expect("event");
        assert!(event.metadata.name.starts_with("web."), "{}", event.metadata.name);
        assert_eq!(
            (event.count, event.type_.as_str(), event.reason.as_str()),
            (1, "Warning", "BackOff")
        );
        assert_eq!(
            (event.source.component.as_str(), event.source.host.as_str()),
            ("orchlet", "n1")
        );
        assert_eq!(event.involved_object.kind, "Pod");
        asked.refuse(503, "ServiceUnavailable");
        let asked = server.asked().await;
        asked.reply_bytes(
            201,
            "application/vnd.kubernetes.protobuf",
            proto_api::object::to_protobuf_envelope(&event, names()),
        );

        let asked = server.asked().await;
        assert_eq!(
            asked.line,
            format!("PATCH /api/v1/namespaces/a/events/{}", event.metadata.name)
        );
        let patch: serde_json::Value = serde_json::from_slice(&asked.body).expect("JSON");
        assert_eq!((&patch["count"], &patch["message"]), (&json!(2), &json!("restarting")));
        asked.refuse(404, "NotFound");
        let asked = server.asked().await;
        assert_eq!(asked.line, "POST /api/v1/namespaces/a/events");
        let again: Event =
            proto_api::object::from_protobuf_envelope(&asked.body, names()).expect("event");
        assert_eq!(again.count, 2);
    }

    /// Keeps a paused clock from going on while sockets are waited for, until the result is dropped.
    fn stop_clock() -> std::sync::mpsc::Sender<()> {
        let (release, wait) = std::sync::mpsc::channel();
        // The clock goes on when all is idle, and this is not.
        tokio::task::spawn_blocking(move || wait.recv_timeout(PATIENCE));
        release
    }

    #[tokio::test(start_paused = true)]
    async fn normal_events_wait_for_a_busy_program_and_warnings_overtake_them() {
        let said = |reason: &'static str| EventReport {
            about: pod(),
            kind: EventKind::Normal,
            reason: reason.into(),
            message: String::new(),
        };
        let (send, waiting) = mpsc::channel(QUEUE_LEN_MAX);
        let mut held = None;
        let is_busy: IsBusy = Box::new(|| true);
        let began = Instant::now();
        send.try_send((said("Started"), SystemTime::now())).expect("room");
        hold(&waiting, &is_busy, &mut held).await;
        assert!(began.elapsed() >= HELD_MAX, "it waits ...");
        let again = Instant::now();
        hold(&waiting, &is_busy, &mut held).await;
        assert_eq!(again.elapsed(), Duration::ZERO, "... but not for ever");
        held = None;
        for _ in 0..HELD_LEN_MAX {
            send.try_send((said("Pulled"), SystemTime::now())).expect("room");
        }
        hold(&waiting, &is_busy, &mut held).await;
        assert_eq!(again.elapsed(), Duration::ZERO, "many do not wait");
        let calm: IsBusy = Box::new(|| false);
        hold(&waiting, &calm, &mut held).await;
        assert_eq!((again.elapsed(), held), (Duration::ZERO, None));

        let _still = stop_clock();
        let mut server = Server::plain().await;
        let (recorder, writer) = recorder(server.client(), "orchlet", "n1");
        recorder.event(&pod(), EventKind::Normal, "Started", "all is well");
        recorder.event(&pod(), EventKind::Warning, "Failed", "nothing is");
        let drain = Drain::default();
        tokio::spawn(writer.yielding(is_busy).run(drain.watch()));
        let asked = server.asked().await;
        let event: Event =
            proto_api::object::from_protobuf_envelope(&asked.body, names()).expect("event");
        assert_eq!(event.reason, "Failed");
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_written_at_their_rate_and_warnings_first() {
        let _still = stop_clock();
        let mut server = Server::plain().await;
        let (recorder, writer) = recorder(server.client(), "orchlet", "n1");
        let said = [("a", EventKind::Normal), ("b", EventKind::Normal), ("c", EventKind::Warning)];
        for (message, kind) in said {
            recorder.event(&pod(), kind, "Tells", message);
        }
        let drain = Drain::default();
        tokio::spawn(writer.paced(Rate::new(1, 2)).run(drain.watch()));
        let take = |asked: ReceivedRequest| {
            let event: Event =
                proto_api::object::from_protobuf_envelope(&asked.body, names()).expect("event");
            asked.refuse(409, "AlreadyExists");
            event.message
        };
        assert_eq!(take(server.asked().await), "c");
        assert_eq!(take(server.asked().await), "a");
        // The rate is one in a second after the first two.
        let mut third = Box::pin(server.asked());
        for _ in 0..100 {
            assert!((&mut third).now_or_never().is_none(), "before its time");
            std::thread::sleep(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
        tokio::time::advance(Duration::from_millis(1100)).await;
        assert_eq!(take(third.await), "b");
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let server = Server::plain().await;
        let (recorder, _writer) = recorder(server.client(), "orchlet", "n1");
        for _ in 0..QUEUE_LEN_MAX + 3 {
            recorder.event(&pod(), EventKind::Normal, "Pulled", "image is present");
        }
        assert_eq!(recorder.dropped(), 3);
    }
}
