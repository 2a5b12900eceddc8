//! get and list, from memory, at the requested revision.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use apiserver_schema::list::ListMeta;
use apiserver_store::{
    Compacted, NotSynced, Range, Record as _, Revision, Snapshot, SnapshotError,
};

use super::page::ContinueToken;
use super::selection::Selection;
use super::{VerbOutput, VerbResponse};
use crate::context::RequestContext;
use crate::conversion;
use crate::record::StoredObject;
use crate::request::{Query, RequestInfo, Verb};
use crate::server::Server;
use crate::status::{ApiError, FieldProblem, StatusTarget};

/// How long a read waits for a revision that is not committed yet.
const REVISION_WAIT: Duration = Duration::from_secs(3);
/// Most remaining objects that are counted. `remainingItemCount` is optional, and counting a large collection costs more than
/// the page.
const REMAINING_MAX: usize = 10_000;
/// Objects read per step while a selector filters.
const SCAN_LEN: usize = 500;
/// Stored bytes after which a page ends, whatever its limit: who sets a limit wants a bounded response, and objects may have megabytes each. A page has one
/// object at least.
const PAGE_STORED_LEN: usize = 8 << 20;

/// Returns the requested object.
///
/// # Errors
/// 404 if it does not exist, 400 for a malformed resourceVersion, 504 for one in the future.
pub async fn get(call: &RequestContext<'_>) -> Result<VerbOutput, ApiError> {
    if let Some(revision) = revision(call.query)? {
        wait_for(call, revision).await?;
    }
    Ok(VerbResponse::Stored { code: 200, record: call.current().await? }.into())
}

/// Returns a collection, or one page of it.
///
/// # Errors
/// 400 and 422 for conflicting parameters, 410 for compacted revisions, 504 for future ones.
pub async fn list(call: &RequestContext<'_>) -> Result<VerbOutput, ApiError> {
    let options = ListOptions::parse(call.query)?;
    // A list takes far less time than any timeout: the parameter is only validated.
    super::watch::timeout(call.query)?;
    let selection = Selection::parse(call)?;
    let (snapshot, start) = open_snapshot(call, &options).await?;
    let bound = options.limit.map(|objects| PageBound { objects, stored_len: PAGE_STORED_LEN });
    let page = scan(call, &snapshot, start.as_deref(), bound, &selection).await?;
    let next = page.next.as_ref().map(|start| ContinueToken::new(snapshot.revision().0, start));
    let remaining = match &page.next {
        // Counting matches of a selector means reading all objects: the field is left out.
        Some(start) if selection.is_everything() => remaining(call, &snapshot, start),
        _ => None,
    };
    let meta = ListMeta {
        resource_version: snapshot.revision().to_string(),
        continue_token: next.map(|next| next.encode()).unwrap_or_default(),
        remaining,
    };
    Ok(VerbResponse::List { kind: call.kind.clone(), meta, items: page.items }.into())
}

/// The objects of the list that the request describes.
///
/// # Errors
/// As [`list`].
pub(super) async fn select(call: &RequestContext<'_>) -> Result<Vec<Arc<StoredObject>>, ApiError> {
    let options = ListOptions::parse(call.query)?;
    let selection = Selection::parse(call)?;
    let (snapshot, start) = open_snapshot(call, &options).await?;
    let bound = options.limit.map(|objects| PageBound { objects, stored_len: usize::MAX });
    Ok(scan(call, &snapshot, start.as_deref(), bound, &selection).await?.items)
}

/// The requested revision of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListRevision {
    /// The current revision.
    Latest,
    /// The current revision, at least this one.
    NotOlderThan(u64),
    /// Exactly this revision.
    Exact(u64),
    /// The page of a continue token.
    FromToken(ContinueToken),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListOptions {
    revision: ListRevision,
    limit: Option<usize>,
}

impl ListOptions {
    /// Parses `resourceVersion`, `resourceVersionMatch`, `limit` and `continue` by Kubernetes' resource version semantics.
    fn parse(query: &Query) -> Result<Self, ApiError> {
        let limit = query.number("limit")?.filter(|limit| *limit > 0);
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let asked = revision(query)?;
        let token = query.text("continue");
        let matching = query.text("resourceVersionMatch");
        if query.flag("sendInitialEvents") && !query.flag("watch") {
            return Err(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        if matching.is_some() {
            if token.is_some() {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if query.text("resourceVersion").is_none() {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
        }
        let revision = match (matching, token, asked) {
            (None, Some(_), Some(revision)) if revision > 0 => {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            (None, Some(token), _) => ListRevision::FromToken(ContinueToken::decode(token)?),
            (None, None, None | Some(0)) => ListRevision::Latest,
            (None, None, Some(revision)) if limit.is_some() => ListRevision::Exact(revision),
            (None, None, Some(revision)) => ListRevision::NotOlderThan(revision),
            (Some("Exact"), _, Some(0)) => {
                return Err(forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            (Some("Exact"), _, Some(revision)) => ListRevision::Exact(revision),
            (Some("NotOlderThan"), _, asked) => ListRevision::NotOlderThan(asked.unwrap_or(0)),
            (Some(other), _, _) => {
                let problem = FieldProblem {
                    reason: "FieldValueNotSupported".to_owned(),
                    message: format!(
                        "Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                    ),
                    field: "resourceVersionMatch".to_owned(),
                };
                return Err(invalid_options(problem));
            }
        };
        Ok(Self { revision, limit })
    }
}

/// Parses `resourceVersion`; `None` if it is not set.
///
/// # Errors
/// 400 if it is not a number.
pub(super) fn revision(query: &Query) -> Result<Option<u64>, ApiError> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            ApiError::bad_request(format!(
                "Invalid value: {text:?}: resourceVersion must be a number"
            ))
        })
    };
    query.text("resourceVersion").map(parse).transpose()
}

/// A 422 for a forbidden list option.
pub(super) fn forbidden(field: &str, detail: &str) -> ApiError {
    invalid_options(FieldProblem::forbidden(field, detail))
}

fn invalid_options(problem: FieldProblem) -> ApiError {
    ApiError::invalid(StatusTarget { kind: "ListOptions", group: "", name: "" }, &[problem])
}

/// Waits up to [`REVISION_WAIT`] until `revision` is committed.
pub(super) async fn wait_for(call: &RequestContext<'_>, revision: u64) -> Result<(), ApiError> {
    let store = &call.server.store;
    if store.is_shared() && Revision(revision) > store.revision() {
        // Another server may have answered with it.
        store.sync_to(Revision(revision)).await.map_err(|error| not_synced(&error))?;
    }
    let waited = store.wait_for(Revision(revision), REVISION_WAIT).await;
    waited.map_err(|late| ApiError::revision_too_large(revision, late.current.0))
}

/// Waits until this server has every write that was answered by any, for requests that must not miss one: all but reads of a revision. Costs nothing
/// where there is one server.
///
/// # Errors
/// 503 if the store that the servers share does not answer.
pub async fn be_current(
    server: &Server,
    request: &RequestInfo,
    query: &Query,
) -> Result<(), ApiError> {
    if !server.store.is_shared() {
        return Ok(());
    }
    let is_read = matches!(request.verb, Verb::Get | Verb::List | Verb::Watch);
    let of_revision = query.text("resourceVersion").is_some() || query.text("continue").is_some();
    if is_read && of_revision {
        return Ok(());
    }
    server.store.sync().await.map_err(|error| not_synced(&error))
}

fn not_synced(error: &NotSynced) -> ApiError {
    ApiError::unavailable(error.to_string())
}

async fn open_snapshot(
    call: &RequestContext<'_>,
    options: &ListOptions,
) -> Result<(Snapshot<StoredObject>, Option<String>), ApiError> {
    let exactly =
        |revision: u64| match call.server.store.snapshot_at(&call.prefix(), Revision(revision)) {
            Ok(snapshot) => Ok(snapshot),
            Err(SnapshotError::Compacted(_)) => Err(list_expired()),
            Err(SnapshotError::Future { current, .. }) => {
                Err(ApiError::revision_too_large(revision, current.0))
            }
        };
    match &options.revision {
        ListRevision::Latest => Ok((call.server.snapshot(), None)),
        ListRevision::NotOlderThan(revision) => {
            wait_for(call, *revision).await?;
            Ok((call.server.snapshot(), None))
        }
        ListRevision::Exact(revision) => {
            wait_for(call, *revision).await?;
            Ok((exactly(*revision)?, None))
        }
        ListRevision::FromToken(page) => {
            if call.server.store.is_shared() {
                // The page before may be another server's.
                wait_for(call, page.rv).await?;
            }
            let snapshot = exactly(page.rv).map_err(|_| {
                ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. \
                     You must start a new list without the continue parameter.",
                )
            })?;
            Ok((snapshot, Some(page.start.clone())))
        }
    }
}

fn list_expired() -> ApiError {
    ApiError::expired("The resourceVersion for the provided list is too old.")
}

/// What ends a page.
#[derive(Clone, Copy)]
struct PageBound {
    objects: usize,
    stored_len: usize,
}

struct ScannedPage {
    items: Vec<Arc<StoredObject>>,
    /// Last key of this page relative to the prefix; `None` on the last page.
    next: Option<String>,
}

async fn scan(
    call: &RequestContext<'_>,
    snapshot: &Snapshot<StoredObject>,
    start: Option<&str>,
    bound: Option<PageBound>,
    selection: &Selection,
) -> Result<ScannedPage, ApiError> {
    let prefix = call.prefix();
    let below = |key: &str| key.strip_prefix(prefix.as_str()).unwrap_or(key).to_owned();
    let mut after = start.map(|start| format!("{prefix}{start}"));
    let mut items = Vec::new();
    let mut stored_len: usize = 0;
    let deadline = conversion::list_deadline();
    loop {
        let wanted = bound.map(|bound| bound.objects.saturating_sub(items.len()));
        let chunk = if selection.is_everything() { wanted } else { Some(SCAN_LEN) };
        let range = Range { prefix: &prefix, after: after.as_deref(), limit: chunk };
        let page = snapshot.range(range).map_err(|Compacted { .. }| list_expired())?;
        let last = page.entries.last().map(|entry| entry.key.clone());
        let records = page.entries.iter().map(|entry| &entry.record);
        selection.prepare_until(call.asker(), records, deadline).await?;
        for (index, entry) in page.entries.iter().enumerate() {
            // What a selector would say of an object that cannot be decrypted is not known: there is no list without it.
            if !entry.record.is_readable() && selection.may_match_name(entry.record.object()) {
                entry.record.check_readable()?;
            }
            if !selection.matches_listed(&entry.record) {
                continue;
            }
            stored_len = stored_len.saturating_add(entry.record.stored_len());
            items.push(entry.record.clone());
            let is_full = |b: PageBound| items.len() == b.objects || stored_len >= b.stored_len;
            if bound.is_some_and(is_full) {
                let more = page.more || index.saturating_add(1) < page.entries.len();
                return Ok(ScannedPage { items, next: more.then(|| below(&entry.key)) });
            }
        }
        match last {
            Some(last) if page.more => after = Some(last.to_string()),
            _ => return Ok(ScannedPage { items, next: None }),
        }
        // A selector may have decoded each of them.
        tokio::task::yield_now().await;
    }
}

/// The number of objects after `start`, if it is at most [`REMAINING_MAX`].
fn remaining(
    call: &RequestContext<'_>,
    snapshot: &Snapshot<StoredObject>,
    start: &str,
) -> Option<i64> {
    let prefix = call.prefix();
    let after = format!("{prefix}{start}");
    let range = Range { prefix: &prefix, after: Some(&after), limit: Some(REMAINING_MAX + 1) };
    let count = snapshot.count(range).ok()?;
    (count <= REMAINING_MAX).then(|| i64::try_from(count).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use apiserver_auth::User;
    use apiserver_schema::Object;
    use apiserver_store::{Write, WriteCondition};
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::key;
    use crate::record::Draft;
    use crate::request::{Accepted, Encoding, Representation, RequestInfo, Verb};
    use crate::server::Server;

    fn options(query: &str) -> Result<ListRevision, u16> {
        ListOptions::parse(&Query::parse(query))
            .map(|options| options.revision)
            .map_err(|error| error.code())
    }

    #[test]
    fn the_tables_of_the_specification() {
        let token = ContinueToken::new(7, "a");
        let with = |rest: &str| format!("limit=2&continue={}{rest}", token.encode());
        assert_eq!(options(""), Ok(ListRevision::Latest));
        assert_eq!(options("resourceVersion=0"), Ok(ListRevision::Latest));
        assert_eq!(options("resourceVersion=5"), Ok(ListRevision::NotOlderThan(5)));
        assert_eq!(options("limit=3"), Ok(ListRevision::Latest));
        assert_eq!(options("limit=3&resourceVersion=0"), Ok(ListRevision::Latest));
        assert_eq!(options("limit=3&resourceVersion=5"), Ok(ListRevision::Exact(5)));
        assert_eq!(options(&with("")), Ok(ListRevision::FromToken(token.clone())));
        assert_eq!(
            options(&with("&resourceVersion=0")),
            Ok(ListRevision::FromToken(token.clone()))
        );
        assert_eq!(options(&with("&resourceVersion=5")), Err(400));
        assert_eq!(options("resourceVersionMatch=Exact"), Err(422));
        assert_eq!(options("resourceVersionMatch=Exact&resourceVersion=0"), Err(422));
        assert_eq!(
            options("resourceVersionMatch=Exact&resourceVersion=5"),
            Ok(ListRevision::Exact(5))
        );
        assert_eq!(options("resourceVersionMatch=NotOlderThan"), Err(422));
        assert_eq!(
            options("resourceVersionMatch=NotOlderThan&resourceVersion=0"),
            Ok(ListRevision::NotOlderThan(0))
        );
        assert_eq!(
            options("resourceVersionMatch=NotOlderThan&resourceVersion=5&limit=1"),
            Ok(ListRevision::NotOlderThan(5))
        );
        assert_eq!(options("resourceVersionMatch=Newest&resourceVersion=5"), Err(422));
        assert_eq!(options("resourceVersion=x"), Err(400));
        assert_eq!(options("continue=x"), Err(400));
        assert_eq!(options("limit=-1"), Err(400));
    }

    /// Writes a few versions of an object; those before the last are compacted.
    async fn compacted() -> Server {
        let server = Server::for_tests(Names::new(Profile::Kubernetes));
        let kind = server.kind("", "configmaps").unwrap();
        for name in ["a", "b", "c"] {
            let mut object = Object::new(kind.clone());
            object.set_meta_str("name", name);
            object.set_meta_str("namespace", "d");
            let draft = Draft::new(&server.engine, object);
            let key = key::object(kind, "d", name);
            server
                .store
                .write(Write::Put { key, expect: WriteCondition::Anything, draft })
                .await
                .unwrap();
        }
        server.store.compact(server.store.revision());
        server
    }

    #[tokio::test]
    async fn lists_at_compacted_revisions_are_expired() {
        let server = compacted().await;
        let request = RequestInfo {
            verb: Verb::List,
            group: String::new(),
            version: "v1".to_owned(),
            namespace: "d".to_owned(),
            resource: "configmaps".to_owned(),
            subresource: String::new(),
            name: String::new(),
            rest: String::new(),
        };
        let kind = server.kind("", "configmaps").unwrap().clone();
        let user = User::default();
        let accepted =
            Accepted { encoding: Encoding::Json, representation: Representation::Object };
        let code = async |text: &str| {
            let query = Query::parse(text);
            let call = RequestContext {
                server: &server,
                request: &request,
                kind: kind.clone(),
                requested_version: kind.clone(),
                user: &user,
                user_agent: "",
                query: &query,
                accepted,
                notes: None,
                audit: &apiserver_audit::OFF,
            };
            list(&call).await.map(drop).map_err(|error| error.code())
        };
        let token = ContinueToken::new(1, "a").encode();
        assert_eq!(code("resourceVersionMatch=Exact&resourceVersion=1").await, Err(410));
        assert_eq!(code("limit=1&resourceVersion=1").await, Err(410));
        assert_eq!(code(&format!("limit=1&continue={token}")).await, Err(410));
        assert_eq!(code("resourceVersion=1").await, Ok(()), "not older than");
        assert_eq!(code("limit=1").await, Ok(()));
    }
}
