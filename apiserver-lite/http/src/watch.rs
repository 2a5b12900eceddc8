//! The response body of a watch: events as JSON lines, Protobuf frames or Tables, in large chunks, with bookmarks.

use std::sync::Arc;
use std::time::Duration;

use apiserver_core::conversion;
use apiserver_core::record::StoredObject;
use apiserver_core::request::{Accepted, Encoding};
use apiserver_core::status::ApiError;
use apiserver_core::verbs::{Bookmarks, LENGTH_MAX, Selection, WatchStart, watch_event};
use apiserver_core::webhook_call::Asker;
use apiserver_schema::{Object, list};
use apiserver_store::{Event, Watch, WatchEnd};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::watch_batching::{ConnectionNumber, GroupMember};

use super::body::{BoxError, ResponseBody};
use super::render;
use crate::server::HttpServer;

/// Time between bookmarks on a quiet stream.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Size at which a chunk is sent.
const CHUNK_LEN: usize = 64 << 10;

/// The body that streams the watch `start` to `connection` in the accepted representation.
#[must_use]
pub fn body(
    server: Arc<HttpServer>,
    start: WatchStart,
    accepted: Accepted,
    connection: Option<ConnectionNumber>,
) -> ResponseBody {
    let now = Instant::now();
    let streaming = WatchStream {
        ends_at: now.checked_add(start.length.min(LENGTH_MAX)).unwrap_or(now),
        bookmark_at: now + BOOKMARK_EVERY,
        member: server.watch_batches.join(&group(&start), connection),
        encoder: Encoder { server, accepted, kind: start.kind.clone(), with_columns: true },
        user: start.user,
        selection: start.selection,
        bookmarks: start.bookmarks,
        unserved: start.unserved,
        phase: Phase::Start {
            initial: start.initial,
            then: start.changes,
            revision: start.revision.0,
        },
        events: Vec::new(),
    };
    let frames = stream::unfold(streaming, |mut streaming| async move {
        let chunk = streaming.next_chunk().await?;
        Some((Ok::<_, BoxError>(Frame::data(chunk)), streaming))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// What the watches have in common that the same events wake.
fn group(start: &WatchStart) -> String {
    match &start.topic {
        Some(topic) => format!("{}?{topic}", start.prefix),
        None => start.prefix.clone(),
    }
}

struct WatchStream {
    ends_at: Instant,
    bookmark_at: Instant,
    /// Membership in the group of watches of the same collection.
    member: GroupMember,
    encoder: Encoder,
    user: String,
    selection: Selection,
    bookmarks: Bookmarks,
    unserved: Option<CancellationToken>,
    phase: Phase,
    /// Events copied from the store and not encoded yet; the buffer is reused.
    events: Vec<Event<StoredObject>>,
}

enum Phase {
    /// Converts the initial objects.
    Start {
        initial: Vec<Arc<StoredObject>>,
        then: Result<Watch<StoredObject>, ApiError>,
        revision: u64,
    },
    /// Sends the initial objects as `ADDED` events.
    Initial {
        left: std::vec::IntoIter<Arc<StoredObject>>,
        then: Result<Watch<StoredObject>, ApiError>,
        revision: u64,
    },
    /// Sends the changes after them.
    Following(Watch<StoredObject>),
    /// The stream is complete.
    Ended,
}

/// Why a wait for changes ended.
enum WakeReason {
    Events,
    BookmarkDue,
    Lagged(ApiError),
    Ended,
}

impl WatchStream {
    /// The next chunk to send; `None` at the end of the stream.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        while chunk.is_empty() {
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Start { mut initial, then, revision } => {
                    if self.show(&mut initial, &mut chunk).await {
                        let left = initial.into_iter();
                        self.phase = Phase::Initial { left, then, revision };
                    }
                }
                Phase::Initial { left, then, revision } => {
                    self.initial(left, then, revision, &mut chunk)
                }
                Phase::Following(watch) => self.following(watch, &mut chunk).await,
                Phase::Ended => return None,
            }
        }
        Some(chunk.freeze())
    }

    /// Converts objects to the version of the watch. Where that fails the stream ends with the error.
    async fn show(&self, records: &mut [Arc<StoredObject>], chunk: &mut BytesMut) -> bool {
        if self.encoder.kind.custom().is_none() {
            return true;
        }
        let asker = Asker { server: &self.encoder.server.core, user: &self.user };
        let shown = conversion::show(asker, &self.encoder.kind, records).await;
        shown.inspect_err(|error| self.encoder.error(chunk, error)).is_ok()
    }

    fn initial(
        &mut self,
        mut left: std::vec::IntoIter<Arc<StoredObject>>,
        then: Result<Watch<StoredObject>, ApiError>,
        revision: u64,
        chunk: &mut BytesMut,
    ) {
        for record in left.by_ref() {
            self.encoder.event(chunk, "ADDED", &record);
            if chunk.len() >= CHUNK_LEN {
                self.phase = Phase::Initial { left, then, revision };
                return;
            }
        }
        match then {
            Ok(watch) => {
                if self.bookmarks == Bookmarks::AfterInitial {
                    self.encoder.bookmark(chunk, revision, BookmarkKind::InitialEventsEnd);
                }
                self.phase = Phase::Following(watch);
            }
            Err(error) => self.encoder.error(chunk, &error),
        }
    }

    async fn following(&mut self, mut watch: Watch<StoredObject>, chunk: &mut BytesMut) {
        match self.wait(&mut watch).await {
            WakeReason::Events => {
                if let Some(turn) = self.member.next_send(Instant::now()) {
                    sleep_until(turn).await;
                    // Events beyond one batch, and errors, are returned by the next wait.
                    let _ = watch.try_batch(&mut self.events);
                }
                if self.events_shown(chunk).await {
                    self.phase = Phase::Following(watch);
                }
            }
            WakeReason::BookmarkDue => {
                self.encoder.bookmark(chunk, watch.seen().0, BookmarkKind::Progress);
                self.bookmark_at = Instant::now() + BOOKMARK_EVERY;
                self.phase = Phase::Following(watch);
            }
            WakeReason::Lagged(error) => self.encoder.error(chunk, &error),
            WakeReason::Ended => {}
        }
    }

    /// Sends the events. Returns whether the stream goes on.
    async fn events_shown(&mut self, chunk: &mut BytesMut) -> bool {
        let asker = Asker { server: &self.encoder.server.core, user: &self.user };
        let before = self.events.iter().filter_map(|event| event.previous.as_ref());
        let records = self.events.iter().map(|event| &event.record).chain(before);
        if let Err(error) = self.selection.prepare(asker, records).await {
            self.encoder.error(chunk, &error);
            return false;
        }
        let events = self.events.drain(..);
        let changes = events.filter_map(|event| watch_event(&event, &self.selection));
        if self.encoder.kind.custom().is_none() {
            for change in changes {
                self.encoder.event(chunk, change.kind, &change.record);
            }
            return true;
        }
        let (kinds, mut records): (Vec<_>, Vec<_>) =
            changes.map(|change| (change.kind, change.record)).unzip();
        if !self.show(&mut records, chunk).await {
            return false;
        }
        for (kind, record) in kinds.into_iter().zip(&records) {
            self.encoder.event(chunk, kind, record);
        }
        true
    }

    async fn wait(&mut self, watch: &mut Watch<StoredObject>) -> WakeReason {
        let wants_bookmark = self.bookmarks != Bookmarks::Unwanted;
        let unserved = self.unserved.clone();
        let unserved = async move {
            match unserved {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        // Cancel safe: `next_batch` keeps undelivered events, the others hold no state.
        tokio::select! {
            biased;
            () = self.encoder.server.stopping.cancelled() => WakeReason::Ended,
            () = sleep_until(self.ends_at) => WakeReason::Ended,
            outcome = watch.next_batch(&mut self.events) => match outcome {
                Ok(()) => WakeReason::Events,
                Err(WatchEnd::Lagged(lag)) => WakeReason::Lagged(ApiError::expired(format!(
                    "too old resource version: {} ({})", lag.seen, lag.oldest,
                ))),
                Err(WatchEnd::Closed) => WakeReason::Ended,
            },
            // After the events: the last ones are the deletions of all objects.
            () = unserved => WakeReason::Ended,
            () = sleep_until(self.bookmark_at), if wants_bookmark => WakeReason::BookmarkDue,
        }
    }
}

/// What a bookmark reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BookmarkKind {
    Progress,
    InitialEventsEnd,
}

struct Encoder {
    server: Arc<HttpServer>,
    accepted: Accepted,
    kind: Arc<apiserver_schema::Kind>,
    /// Whether the next Table includes the column definitions: only the first of a stream does.
    with_columns: bool,
}

impl Encoder {
    fn event(&mut self, out: &mut BytesMut, event: &str, record: &Arc<StoredObject>) {
        let shown = record.as_version(&self.kind);
        match render::stored(&self.server.core, self.accepted, &shown, self.with_columns) {
            Ok(object) => {
                self.with_columns = false;
                self.frame(out, event, &object);
            }
            Err(error) => self.error(out, &error),
        }
    }

    fn bookmark(&self, out: &mut BytesMut, revision: u64, kind: BookmarkKind) {
        let mut object = Object::new(self.kind.clone());
        object.set_meta_str("resourceVersion", &revision.to_string());
        if kind == BookmarkKind::InitialEventsEnd {
            let annotation =
                format!("{}/initial-events-end", self.server.core.names.group_domain());
            object.metadata_mut().map_or_insert("annotations").insert(annotation, "true");
        }
        let bytes = render::bookmark(&self.server.core, self.accepted, &object);
        self.frame(out, "BOOKMARK", &bytes);
    }

    fn error(&self, out: &mut BytesMut, error: &ApiError) {
        let bytes = render::status(self.server.core.names, self.accepted.encoding, error.status());
        self.frame(out, "ERROR", &bytes);
    }

    fn frame(&self, out: &mut BytesMut, event: &str, object: &[u8]) {
        match self.accepted.encoding {
            Encoding::Protobuf => out.extend_from_slice(&list::watch_event_protobuf(event, object)),
            // Written into the chunk without an intermediate allocation per watch.
            Encoding::Json | Encoding::Yaml => {
                for part in [b"{\"type\":\"", event.as_bytes(), b"\",\"object\":", object, b"}\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
}
