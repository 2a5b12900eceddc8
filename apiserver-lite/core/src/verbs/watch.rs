//! watch: the start of a stream, and the watch event of each committed write for a selector.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use apiserver_schema::Kind;
use apiserver_store::{Event, EventKind, Revision, SnapshotError, Watch};
use rand::RngExt as _;
use tokio_util::sync::CancellationToken;

use super::initial_objects::{InitialObjects, too_old};
use super::read::{forbidden, revision, wait_for};
use super::selection::Selection;
use super::{VerbOutput, VerbResponse};
use crate::context::RequestContext;
use crate::record::StoredObject;
use crate::request::Query;
use crate::status::ApiError;

/// A watch to be streamed.
pub struct WatchStart {
    /// Name of the user.
    pub user: String,
    /// Kind of the objects.
    pub kind: Arc<Kind>,
    /// Key prefix of the watched objects.
    pub prefix: String,
    /// Their topic, if they are of one only.
    pub topic: Option<String>,
    /// The objects that are sent as `ADDED` first; `None` if there are to be none.
    pub initial: Option<InitialObjects>,
    /// The revision at which the watch starts.
    pub revision: Revision,
    /// The events after `revision`, or the error that ends the stream after the initial objects.
    pub changes: Result<Watch<StoredObject>, ApiError>,
    /// Selector of the objects.
    pub selection: Selection,
    /// Which bookmarks the client requested.
    pub bookmarks: Bookmarks,
    /// Time after which the stream ends; the client then watches again.
    pub length: Duration,
    /// Cancelled when the definition of a custom kind goes, or does not serve its version any more: the stream ends.
    pub unserved: Option<CancellationToken>,
}

/// Bookmarks of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bookmarks {
    /// None.
    Unwanted,
    /// Periodic bookmarks.
    Wanted,
    /// A bookmark at the end of the initial events, then periodic ones.
    AfterInitial,
}

/// An event as one watch sees it.
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: &'static str,
    /// The object.
    pub record: Arc<StoredObject>,
}

/// Length of a watch without `timeoutSeconds`: random, so that clients do not all watch again at once.
const LENGTH_SECS: std::ops::Range<u64> = 1800..3600;

/// Longest watch, whatever the client requests. Kubernetes has no limit; clients watch again when a stream ends.
pub const LENGTH_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses `timeoutSeconds` of a list or a watch, at most [`LENGTH_MAX`]; `None` if it is unset or zero. A negative value ends a
/// watch at once, as in Kubernetes.
///
/// # Errors
/// 400 if it is not a 64-bit number.
pub(super) fn timeout(query: &Query) -> Result<Option<Duration>, ApiError> {
    let Some(text) = query.text("timeoutSeconds") else { return Ok(None) };
    let seconds: i64 = text
        .parse()
        .map_err(|_| ApiError::bad_request(format!("invalid value {text:?} for timeoutSeconds")))?;
    let length = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LENGTH_MAX);
    Ok((seconds != 0).then_some(length))
}

/// Starts a watch.
///
/// # Errors
/// 400 and 422 for conflicting parameters, 504 for a revision in the future. A compacted revision is reported as an `ERROR`
/// event (410) in the stream, as Kubernetes' clients expect.
pub async fn watch(call: &RequestContext<'_>) -> Result<VerbOutput, ApiError> {
    let selection = Selection::parse(call)?;
    let from = revision(call.query)?;
    let initial_events = initial_events(call)?;
    let bookmarks = match (call.query.flag("allowWatchBookmarks"), initial_events) {
        (true, Some(true)) => Bookmarks::AfterInitial,
        (true, _) => Bookmarks::Wanted,
        (false, _) => Bookmarks::Unwanted,
    };
    if let Some(revision) = from {
        wait_for(call, revision).await?;
    }
    let (start, with_state) = match (from, initial_events) {
        (_, Some(true)) | (None | Some(0), None) => (call.server.store.revision(), true),
        (None | Some(0), Some(false)) => (call.server.store.revision(), false),
        (Some(revision), _) => {
            (call.server.store.resume_after(&call.prefix(), Revision(revision)), false)
        }
    };
    // A single name is watched by its key; longer names with that prefix are filtered by the selection.
    let prefix = match selection.name() {
        Some(name) if names_one_object(call) => format!("{}{name}", call.prefix()),
        _ => call.prefix(),
    };
    let topic = selection.topic(&call.kind).map(str::to_owned);
    let changes = call.server.store.watch_topic(prefix.clone(), topic.clone(), start);
    let changes = changes.map_err(|error| match error {
        SnapshotError::Compacted(compacted) => too_old(compacted),
        SnapshotError::Future { requested, current } => {
            ApiError::revision_too_large(requested.0, current.0)
        }
    });
    let initial = with_state.then(|| InitialObjects::new(prefix.clone(), start));
    let length = timeout(call.query)?
        .unwrap_or_else(|| Duration::from_secs(rand::rng().random_range(LENGTH_SECS)));
    Ok(VerbResponse::Watch(Box::new(WatchStart {
        user: call.user.name.clone(),
        kind: call.kind.clone(),
        prefix,
        topic,
        initial,
        revision: start,
        changes,
        selection,
        bookmarks,
        length,
        unserved: call.server.definitions.end_of(&call.kind),
    }))
    .into())
}

/// Whether a name identifies one object: the collection does not span namespaces.
fn names_one_object(call: &RequestContext<'_>) -> bool {
    !call.kind.namespaced() || !call.request.namespace.is_empty()
}

/// Parses `sendInitialEvents` and checks its rules.
fn initial_events(call: &RequestContext<'_>) -> Result<Option<bool>, ApiError> {
    let matching = call.query.text("resourceVersionMatch");
    if call.query.get("sendInitialEvents").is_none() {
        return match matching {
            Some(_) => Err(forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )),
            None => Ok(None),
        };
    }
    match matching {
        Some("NotOlderThan") => Ok(Some(call.query.flag("sendInitialEvents"))),
        _ => Err(forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )),
    }
}

/// The watch event of `event` for `selection`: an object that starts or stops matching is `ADDED` or `DELETED`.
#[must_use]
pub fn watch_event(event: &Event<StoredObject>, selection: &Selection) -> Option<WatchEvent> {
    let now = selection.may_match_record(&event.record);
    if event.kind == EventKind::Deleted {
        return now.then(|| WatchEvent { kind: "DELETED", record: event.record.clone() });
    }
    let before = event.previous.as_ref().filter(|last| selection.matches_record(last));
    match (before, now) {
        (None, true) => Some(WatchEvent { kind: "ADDED", record: event.record.clone() }),
        (Some(_), true) => Some(WatchEvent { kind: "MODIFIED", record: event.record.clone() }),
        (Some(last), false) => Some(WatchEvent { kind: "DELETED", record: last.at(event.stamp) }),
        (None, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_bound() {
        let of = |text: &str| {
            timeout(&Query::parse(&format!("timeoutSeconds={text}"))).map_err(|error| error.code())
        };
        assert_eq!((of(""), of("0")), (Ok(None), Ok(None)));
        assert_eq!(of("7"), Ok(Some(Duration::from_secs(7))));
        assert_eq!(of("-1"), Ok(Some(Duration::ZERO)));
        assert_eq!(of("9223372036854775807"), Ok(Some(LENGTH_MAX)));
        for wrong in ["9223372036854775808", "x", "1.5"] {
            assert_eq!(of(wrong), Err(400), "{wrong}");
        }
    }
}
