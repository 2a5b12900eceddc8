//! What feeds the screen: a list with its watch, a log, or the answer to a question. Dropping a feed ends its requests.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use orchctl_client::{CommandError, LineReader, Session};
use orchctl_printers::objects;
use orchctl_screen::rows::ROWS_MAX;
use orchctl_screen::{Question, RowTarget, Update, View};
use proto_api::{Collection, uri};
use proto_client::ListParams;
use proto_client::request;
use proto_daemon::backoff::{Backoff, Retries};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::get::accept_table;
use crate::{describe, why};

/// Updates that wait to be shown.
const QUEUE_LEN: usize = 16;
/// Objects of one request.
const PAGE: u32 = 500;
/// Most pages of events: a server orders them by name, and the newest are wanted.
const EVENT_PAGES_MAX: usize = 40;
/// Seconds after which the server ends a watch, and the list is read again.
const WATCH_SECS: u64 = 1800;
/// Beyond which a watch is taken for broken.
const WATCH_TIME: Duration = Duration::from_secs(WATCH_SECS + 30);
/// Last lines of a log that are shown at first.
const TAIL_LINES: u32 = 500;
/// The wait after failures.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(15) };

/// Requests, and the updates that they bring.
pub(super) struct Feed<'a> {
    requests: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    updates: mpsc::Receiver<Update>,
}

/// The next update; never without a feed.
pub(super) async fn next(feed: &mut Option<Feed<'_>>) -> Update {
    match feed {
        Some(feed) => feed.next().await,
        None => pending().await,
    }
}

impl<'a> Feed<'a> {
    fn new<F>(requests: impl FnOnce(mpsc::Sender<Update>) -> F) -> Self
    where
        F: Future<Output = ()> + 'a,
    {
        let (sender, updates) = mpsc::channel(QUEUE_LEN);
        Self { requests: Some(Box::pin(requests(sender))), updates }
    }

    /// The rows of a view.
    pub(super) fn rows(session: &'a Session, view: View, namespace: Option<String>) -> Self {
        Self::new(|sender| keep_rows(session, view, namespace, sender))
    }

    /// The log of a container.
    pub(super) fn log(session: &'a Session, pod: RowTarget, container: String) -> Self {
        Self::new(|sender| async move {
            let ended = match follow(session, &pod, &container, &sender).await {
                Ok(()) => Update::LogEnded,
                Err(error) => Update::Notice(error.to_string()),
            };
            // The screen was closed.
            let _ = sender.send(ended).await;
        })
    }

    /// The answer to a question.
    pub(super) fn answer(session: &'a Session, question: Question, target: RowTarget) -> Self {
        Self::new(|sender| async move {
            let answer = answer(session, question, target).await;
            let update = answer.unwrap_or_else(|error| Update::Notice(error.to_string()));
            let _ = sender.send(update).await;
        })
    }

    async fn next(&mut self) -> Update {
        loop {
            let requests = async {
                match &mut self.requests {
                    Some(requests) => requests.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(update) = self.updates.recv() => return update,
                () = requests => self.requests = None,
            }
        }
    }

    /// An update that waits.
    pub(super) fn ready(&mut self) -> Option<Update> {
        self.updates.try_recv().ok()
    }
}

/// Lists and watches, again and again.
async fn keep_rows(
    session: &Session,
    view: View,
    namespace: Option<String>,
    sender: mpsc::Sender<Update>,
) {
    let mut retries = Retries::new(BACKOFF);
    let mut failed = false;
    loop {
        let ended = show_rows(session, view, namespace.as_deref(), &sender, &mut failed).await;
        match ended {
            Ok(()) => retries.reset(),
            Err(error) => {
                // A refusal does not pass by itself, but access may be given.
                failed = true;
                if sender.send(Update::Notice(error.to_string())).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(retries.next_delay(1.0)).await;
    }
}

/// One list and its watch, until the watch ends.
async fn show_rows(
    session: &Session,
    view: View,
    namespace: Option<&str>,
    sender: &mpsc::Sender<Update>,
    failed: &mut bool,
) -> Result<(), CommandError> {
    let is_table = view != View::Events;
    let collection = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: view.name().to_owned(),
        namespace: namespace.filter(|_| view != View::Nodes).map(str::to_owned),
    };
    let pages_max = if is_table {
        ROWS_MAX.div_ceil(usize::try_from(PAGE).unwrap_or(1))
    } else {
        EVENT_PAGES_MAX
    };
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() };
    let mut version = String::new();
    for at in 0..pages_max {
        let mut request = request::list(collection.path(), &params);
        if is_table {
            accept_table(session, &mut request, false).await?;
        }
        let page = session.call_json(request).await?;
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        version = objects::text_at(&page, "/metadata/resourceVersion").to_owned();
        let is_last = next.is_empty();
        let is_cut = !is_last && at.saturating_add(1) == pages_max;
        send(sender, Update::Page { page, is_first: at == 0, is_cut }).await?;
        if is_last {
            break;
        }
        params.continue_ = Some(next);
    }
    if std::mem::take(failed) {
        send(sender, Update::Recovered).await?;
    }
    let params = ListParams::default();
    let mut request = request::watch(collection.path(), &params, &version, WATCH_SECS);
    if is_table {
        accept_table(session, &mut request, false).await?;
    }
    let mut lines = LineReader::new(session.open(request).await?).ending_after(WATCH_TIME);
    while let Some(line) = lines.next_line().await? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let event: Value = serde_json::from_slice(&line).map_err(|error| {
            CommandError::with_text(format!(
                "an event of the watch of {} is not valid JSON: {error}",
                view.name()
            ))
        })?;
        match objects::text_at(&event, "/type") {
            "BOOKMARK" => {}
            // The list is read again.
            "ERROR" => break,
            _ => send(sender, Update::Changed(event)).await?,
        }
    }
    Ok(())
}

/// Sends the log as it grows.
async fn follow(
    session: &Session,
    pod: &RowTarget,
    container: &str,
    sender: &mpsc::Sender<Update>,
) -> Result<(), CommandError> {
    let pods = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "pods".to_owned(),
        namespace: Some(pod.namespace.clone()),
    };
    let path = pods.item(&pod.name, Some("log"));
    let container = uri::encode(container, uri::COMPONENT);
    let query = format!("container={container}&follow=true&tailLines={TAIL_LINES}");
    let response = session.open(request::get(format!("{path}?{query}"))).await?;
    let mut lines = LineReader::new(response);
    while let Some(part) = lines.part().await? {
        send(sender, Update::Log(part.to_vec())).await?;
    }
    Ok(())
}

async fn answer(
    session: &Session,
    question: Question,
    target: RowTarget,
) -> Result<Update, CommandError> {
    let resource = session.discovery().await?.served_kind(&target.api_version, &target.kind)?;
    if target.name.is_empty() {
        return Err(CommandError::with_text(format!("the event names no {}", target.kind)));
    }
    if question == Question::Why {
        why::check(resource)?;
    }
    let path = resource.collection(Some(&target.namespace)).item(&target.name, None);
    let object = session.call_json(request::get(path)).await?;
    let name = objects::kind_and_name(&object);
    Ok(match question {
        Question::Describe => {
            Update::Answer { title: name, text: describe::text_of(session, &object).await? }
        }
        Question::Why => Update::Answer {
            title: format!("why {name}"),
            text: why::text_of(session, object).await,
        },
        Question::Containers => {
            let fields = ["containers", "initContainers", "ephemeralContainers"];
            let all = fields.into_iter().flat_map(|field| {
                objects::list_at(&object, &format!("/spec/{field}"))
                    .iter()
                    .map(|one| objects::text_at(one, "/name").to_owned())
            });
            Update::Containers(target, all.collect())
        }
    })
}

/// A closed screen needs no more updates.
async fn send(sender: &mpsc::Sender<Update>, update: Update) -> Result<(), CommandError> {
    sender.send(update).await.map_err(|_| CommandError::with_text("the terminal screen was closed"))
}
