//! The response body of a watch: events as JSON lines, Protobuf frames or Tables, in large chunks, with bookmarks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::conversion;
use apiserver_core::record::StoredObject;
use apiserver_core::request::{Accepted, Encoding};
use apiserver_core::status::ApiError;
use apiserver_core::verbs::{
    Bookmarks, InitialObjects, LENGTH_MAX, Selection, WatchStart, watch_event,
};
use apiserver_core::webhook_call::Asker;
use apiserver_schema::{Object, list};
use apiserver_store::{Event, Revision, Watch, WatchEnd};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::unsent_bytes::UserShare;
use crate::watch_batching::{ConnectionNumber, GroupMember};

use super::body::{BoxError, ResponseBody};
use super::render;
use crate::server::HttpServer;

/// Time between bookmarks on a quiet stream.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a chunk after which no more is added.
const CHUNK_LEN: usize = 256 << 10;
/// Objects of at least this many bytes are frames of their own, shared by all watches of them.
const SHARED_LEN: usize = 16 << 10;

/// The body that streams the watch `start` to `connection` in the accepted representation.
#[must_use]
pub fn body(
    server: Arc<HttpServer>,
    start: WatchStart,
    accepted: Accepted,
    connection: Option<ConnectionNumber>,
) -> ResponseBody {
    let now = Instant::now();
    let share = server.overload.unsent(&start.user);
    let streaming = WatchStream {
        ends_at: now.checked_add(start.length.min(LENGTH_MAX)).unwrap_or(now),
        bookmark_at: now + BOOKMARK_EVERY,
        member: server.watch_batches.join(&group(&start), connection),
        encoder: Encoder { server, accepted, kind: start.kind.clone(), with_columns: true },
        user: start.user,
        share,
        selection: start.selection,
        bookmarks: start.bookmarks,
        unserved: start.unserved,
        source: WatchSource {
            initial: start.initial,
            then: match start.changes {
                Ok(watch) => Changes::Watch(watch),
                Err(error) => Changes::Refused(error),
            },
            revision: start.revision.0,
        },
        frames: VecDeque::new(),
        events: Vec::new(),
    };
    let frames = stream::unfold(streaming, |mut streaming| async move {
        let frame = streaming.next_frame().await?;
        Some((Ok::<_, BoxError>(Frame::data(frame)), streaming))
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
    /// What the user may leave unread.
    share: UserShare,
    selection: Selection,
    bookmarks: Bookmarks,
    unserved: Option<CancellationToken>,
    source: WatchSource,
    /// Frames that are encoded and not sent yet.
    frames: VecDeque<Bytes>,
    /// Events copied from the store; the buffer is reused.
    events: Vec<Event<StoredObject>>,
}

/// What is sent.
struct WatchSource {
    /// Objects that are sent first.
    initial: Option<InitialObjects>,
    then: Changes,
    /// Where both meet.
    revision: u64,
}

/// What follows the initial objects.
enum Changes {
    /// The events after them.
    Watch(Watch<StoredObject>),
    /// There is no watch, for this reason.
    Refused(ApiError),
    /// The stream is complete.
    Ended,
}

/// What a stream does next.
enum Step {
    /// It sends objects or events.
    Objects,
    Bookmark,
    End,
}

/// From where objects and events are read.
struct Position {
    initial: Option<InitialObjects>,
    events: Revision,
    with_columns: bool,
}

impl WatchStream {
    /// The next frame to send; `None` at the end of the stream.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        let stopping = self.encoder.server.stopping.clone();
        self.frames = stopping.run_until_cancelled(self.next_frames()).await.flatten()?;
        self.frames.pop_front()
    }

    /// The frames of the next chunk, at least one. They count as unread by the user until they are written; what is read for them is read again where
    /// there is no room for it, so that a stream that waits holds nothing.
    async fn next_frames(&mut self) -> Option<VecDeque<Bytes>> {
        let mut reserved = None;
        loop {
            let mut chunk = Chunk::default();
            match self.next_step().await {
                Step::End => return None,
                Step::Bookmark => self.write_bookmark(&mut chunk),
                Step::Objects => {
                    let position = self.position();
                    self.fill(&mut chunk).await;
                    let len = chunk.len();
                    let fits = match reserved.take() {
                        Some(reserved) => self.share.resize(reserved, len),
                        None => self.share.try_reserve(len),
                    };
                    if let Some(reserved) = fits {
                        if len > 0 {
                            return Some(reserved.attach_to(chunk.into_frames()));
                        }
                        continue;
                    }
                    drop(chunk);
                    self.rewind(position);
                    let room = timeout_at(self.ends_at, self.share.reserve(len)).await;
                    reserved = Some(room.ok()?);
                    continue;
                }
            }
            return Some(chunk.into_frames().into());
        }
    }

    fn position(&self) -> Position {
        let events = match &self.source.then {
            Changes::Watch(watch) => watch.position(),
            Changes::Refused(_) | Changes::Ended => Revision(self.source.revision),
        };
        let with_columns = self.encoder.with_columns;
        Position { initial: self.source.initial.clone(), events, with_columns }
    }

    fn rewind(&mut self, position: Position) {
        if let Changes::Watch(watch) = &mut self.source.then {
            watch.rewind(position.events);
        }
        self.source.initial = position.initial;
        self.encoder.with_columns = position.with_columns;
    }

    fn write_bookmark(&mut self, chunk: &mut Chunk) {
        if let Changes::Watch(watch) = &mut self.source.then {
            self.encoder.bookmark(chunk, watch.delivered_revision().0, BookmarkKind::Progress);
        }
        self.bookmark_at = Instant::now() + BOOKMARK_EVERY;
    }

    /// Writes what there is to send, up to [`CHUNK_LEN`]: in a large group of watches the next turn comes a window later.
    async fn fill(&mut self, chunk: &mut Chunk) {
        loop {
            self.write_objects(chunk).await;
            let is_more = match &self.source.then {
                _ if self.source.initial.is_some() => true,
                Changes::Watch(watch) => watch.is_pending(),
                Changes::Refused(_) | Changes::Ended => false,
            };
            if !is_more || chunk.len() >= CHUNK_LEN {
                return;
            }
            // Of a large collection a selector may take nothing.
            tokio::task::yield_now().await;
        }
    }

    /// Writes initial objects or events, or the error that ends the stream, which comes after what was written before it.
    async fn write_objects(&mut self, chunk: &mut Chunk) {
        let written = match self.source.initial.is_some() {
            true => self.write_initial(chunk).await,
            false => self.write_events(chunk).await,
        };
        let Err(error) = written else { return };
        self.source.initial = None;
        self.source.then = if chunk.len() > 0 {
            Changes::Refused(error)
        } else {
            self.encoder.error(chunk, &error);
            Changes::Ended
        };
    }

    /// Writes the next initial objects.
    ///
    /// # Errors
    /// Ends the stream; nothing was written.
    async fn write_initial(&mut self, chunk: &mut Chunk) -> Result<(), ApiError> {
        let Some(initial) = &mut self.source.initial else { return Ok(()) };
        let asker = Asker::new(&self.encoder.server.core, &self.user);
        let mut records = initial.read_piece(asker, &self.selection).await?;
        let is_done = initial.is_done();
        self.show(&mut records).await?;
        for record in &records {
            self.encoder.event(chunk, "ADDED", record);
        }
        if is_done {
            self.source.initial = None;
            let is_followed = matches!(self.source.then, Changes::Watch(_));
            if is_followed && self.bookmarks == Bookmarks::AfterInitial {
                self.encoder.bookmark(chunk, self.source.revision, BookmarkKind::InitialEventsEnd);
            }
        }
        Ok(())
    }

    /// Converts objects to the version of the watch.
    async fn show(&self, records: &mut [Arc<StoredObject>]) -> Result<(), ApiError> {
        if self.encoder.kind.custom().is_none() {
            return Ok(());
        }
        let asker = Asker::new(&self.encoder.server.core, &self.user);
        conversion::show(asker, &self.encoder.kind, records).await
    }

    /// Writes the next events.
    ///
    /// # Errors
    /// Ends the stream; nothing was written.
    async fn write_events(&mut self, chunk: &mut Chunk) -> Result<(), ApiError> {
        let watch = match &mut self.source.then {
            Changes::Watch(watch) => watch,
            Changes::Refused(error) => return Err(error.clone()),
            Changes::Ended => return Ok(()),
        };
        self.events.clear();
        watch.try_batch(&mut self.events).map_err(|lag| {
            ApiError::expired(format!("too old resource version: {} ({})", lag.seen, lag.oldest))
        })?;
        let asker = Asker::new(&self.encoder.server.core, &self.user);
        let before = self.events.iter().filter_map(|event| event.previous.as_ref());
        let records = self.events.iter().map(|event| &event.record).chain(before);
        self.selection.prepare(asker, records).await?;
        let events = self.events.drain(..);
        let changes = events.filter_map(|event| watch_event(&event, &self.selection));
        if self.encoder.kind.custom().is_none() {
            for change in changes {
                self.encoder.event(chunk, change.kind, &change.record);
            }
            return Ok(());
        }
        let (kinds, mut records): (Vec<_>, Vec<_>) =
            changes.map(|change| (change.kind, change.record)).unzip();
        self.show(&mut records).await?;
        for (kind, record) in kinds.into_iter().zip(&records) {
            self.encoder.event(chunk, kind, record);
        }
        Ok(())
    }

    /// Waits until there may be something to send; of a large group of watches, until this one's turn.
    async fn next_step(&mut self) -> Step {
        let watch = match &mut self.source.then {
            _ if self.source.initial.is_some() => return Step::Objects,
            Changes::Watch(watch) => watch,
            Changes::Refused(_) => return Step::Objects,
            Changes::Ended => return Step::End,
        };
        let wants_bookmark = self.bookmarks != Bookmarks::Unwanted;
        let unserved = self.unserved.clone();
        let unserved = async move {
            match unserved {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        // Cancel safe: none holds a state.
        let step = tokio::select! {
            biased;
            () = sleep_until(self.ends_at) => Step::End,
            ready = watch.ready() => match ready {
                Ok(()) => Step::Objects,
                Err(WatchEnd::Closed | WatchEnd::Lagged(_)) => Step::End,
            },
            // After the events: the last ones are the deletions of all objects.
            () = unserved => Step::End,
            () = sleep_until(self.bookmark_at), if wants_bookmark => Step::Bookmark,
        };
        if matches!(step, Step::Objects)
            && let Some(turn) = self.member.next_send(Instant::now())
        {
            sleep_until(turn).await;
        }
        step
    }
}

/// What a bookmark reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BookmarkKind {
    Progress,
    InitialEventsEnd,
}

/// Frames of a chunk that is being encoded.
#[derive(Default)]
struct Chunk {
    frames: Vec<Bytes>,
    /// Of the frames.
    len: usize,
    /// What follows them.
    rest: BytesMut,
}

impl Chunk {
    fn len(&self) -> usize {
        self.len.saturating_add(self.rest.len())
    }

    fn write(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// Writes what others have as well.
    fn write_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_LEN {
            return self.write(bytes);
        }
        self.push_rest();
        self.push(bytes.clone());
    }

    fn push_rest(&mut self) {
        let rest = self.rest.split().freeze();
        self.push(rest);
    }

    fn push(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.len = self.len.saturating_add(frame.len());
            self.frames.push(frame);
        }
    }

    fn into_frames(mut self) -> Vec<Bytes> {
        self.push_rest();
        self.frames
    }
}

struct Encoder {
    server: Arc<HttpServer>,
    accepted: Accepted,
    kind: Arc<apiserver_schema::Kind>,
    /// Whether the next Table includes the column definitions: only the first of a stream does.
    with_columns: bool,
}

impl Encoder {
    fn event(&mut self, out: &mut Chunk, event: &str, record: &Arc<StoredObject>) {
        let shown = record.as_version(&self.kind);
        match render::stored(&self.server.core, self.accepted, &shown, self.with_columns) {
            Ok(object) => {
                self.with_columns = false;
                self.frame(out, event, &object);
            }
            Err(error) => self.error(out, &error),
        }
    }

    fn bookmark(&self, out: &mut Chunk, revision: u64, kind: BookmarkKind) {
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

    fn error(&self, out: &mut Chunk, error: &ApiError) {
        let bytes = render::status(self.server.core.names, self.accepted.encoding, error.status());
        self.frame(out, "ERROR", &bytes);
    }

    fn frame(&self, out: &mut Chunk, event: &str, object: &Bytes) {
        match self.accepted.encoding {
            Encoding::Protobuf => {
                out.write(&list::watch_event_head(event, object.len()));
                out.write_shared(object);
            }
            // Written into the chunk without an intermediate allocation per watch.
            Encoding::Json | Encoding::Yaml => {
                for part in [b"{\"type\":\"", event.as_bytes(), b"\",\"object\":"] {
                    out.write(part);
                }
                out.write_shared(object);
                out.write(b"}\n");
            }
        }
    }
}
