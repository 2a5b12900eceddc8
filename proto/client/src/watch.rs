//! The objects of a collection and their changes: list, watch, and both again after every kind of error. [`machine`] decides the next step; this file
//! executes it.

pub mod frame;
pub mod machine;

use std::time::Duration;

use http_body_util::BodyExt;

use proto_api::Resource;
use proto_api::meta::v1::Status;
use proto_daemon::backoff::Backoff;
use tokio::time::{sleep, timeout};

use crate::api::Api;
use crate::client::label;
use crate::content::Encoding;
use crate::error::{ClientError, DecodeError};
use crate::params::ListParams;
use crate::request;
use crate::transport::ResponseBody;
use frame::{EventType, FrameReader};
use machine::{Machine, Step, StepFailure, StepResult};

/// Between failures. Short enough that an API server that comes back is noticed within seconds.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// The server ends a watch after this long, and up to as long again at random, so that watches spread over its replicas.
const WATCH_SECS: u64 = 290;
/// A watch that the server should have ended this long ago counts as dead.
const WATCH_GRACE: Duration = Duration::from_secs(30);

/// An observation. Every existing object comes between `ListBegan` and `ListEnded`; known objects that do not come were deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum Observed<T> {
    /// A list begins. It may begin again before it has ended.
    ListBegan,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    ListEnded,
    /// An object was created or changed.
    Applied(T),
    /// An object was deleted; this is its last state.
    Deleted(T),
    /// A watch is open: changes arrive as they happen.
    WatchBegan,
    /// The watch has ended; changes arrive after the next one has begun.
    WatchEnded,
}

/// Reports the objects of the collection and their changes to `observe`, until the future is dropped. Selectors of `params` apply; its paging and version
/// are ignored. Errors are logged and retried.
pub async fn watch<T: Resource>(
    api: &Api<T>,
    params: &ListParams,
    mut observe: impl FnMut(Observed<T>) + Send,
) {
    let mut machine = Machine::default();
    loop {
        let wait = machine.wait(BACKOFF, rand::random());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let happened = match machine.step() {
            Step::List(page) => {
                let first = page.continue_.is_none();
                list_page(api, params, page, first, &mut observe).await
            }
            Step::Watch { resource_version } => {
                let followed = follow(api, params, &resource_version, &mut machine, &mut observe);
                let followed = followed.await;
                observe(Observed::WatchEnded);
                followed
            }
        };
        let happened = happened.unwrap_or_else(|error| {
            tell_trouble(&api.collection().plural, &error, machine.failures() + 1);
            StepResult::Failed(step_failure(&error))
        });
        if machine.finish_step(happened) == machine::ListProgress::Complete {
            observe(Observed::ListEnded);
        }
    }
}

async fn list_page<T: Resource>(
    api: &Api<T>,
    params: &ListParams,
    page: machine::Page,
    first: bool,
    observe: &mut (impl FnMut(Observed<T>) + Send),
) -> Result<StepResult, ClientError> {
    let params = ListParams {
        label_selector: params.label_selector.clone(),
        field_selector: params.field_selector.clone(),
        limit: page.limit,
        continue_: page.continue_,
        resource_version: page.resource_version,
        version_match: None,
    };
    let list = api.list(&params).await?;
    if first {
        observe(Observed::ListBegan);
    }
    for item in list.items {
        observe(Observed::Listed(item));
    }
    Ok(StepResult::Page {
        resource_version: list.metadata.resource_version,
        continue_: Some(list.metadata.continue_).filter(|token| !token.is_empty()),
    })
}

/// Follows one watch until it ends. The machine gets events as they arrive, so that a broken watch is resumed where it broke.
async fn follow<T: Resource>(
    api: &Api<T>,
    params: &ListParams,
    resource_version: &str,
    machine: &mut Machine,
    observe: &mut (impl FnMut(Observed<T>) + Send),
) -> Result<StepResult, ClientError> {
    let client = api.client();
    let secs = WATCH_SECS + rand::random_range(0..WATCH_SECS);
    let request = request::watch(api.collection().path(), params, resource_version, secs);
    let label = label(&request);
    let encoding = client.encoding();
    let response = match client.open(client.accepting(request.clone(), encoding)).await {
        Err(error) if encoding == Encoding::Protobuf && error.code() == Some(406) => {
            client.use_json_only();
            client.open(client.accepting(request, Encoding::Json)).await?
        }
        response => response?,
    };
    let undecodable = |cause| ClientError::Decode { request: label.clone(), cause };
    let encoding =
        Encoding::from_headers(response.headers(), client.names()).map_err(undecodable)?;
    let mut stream = EventStream { frames: FrameReader::new(encoding), body: response.into_body() };
    observe(Observed::WatchBegan);
    let end = Duration::from_secs(secs) + WATCH_GRACE;
    let followed = timeout(end, async {
        while let Some((event, object)) = stream.next(&label).await? {
            if event == EventType::Error {
                return Err(error_event(&label, encoding, &object));
            }
            let object: T = encoding.decode(&object, client.names()).map_err(undecodable)?;
            let version = object.metadata().resource_version.clone();
            match event {
                EventType::Added | EventType::Modified => observe(Observed::Applied(object)),
                EventType::Deleted => observe(Observed::Deleted(object)),
                EventType::Bookmark | EventType::Error => {}
            }
            machine.finish_step(StepResult::Event { resource_version: version });
        }
        Ok(StepResult::Ended)
    });
    match followed.await {
        Ok(ended) => ended,
        Err(_) => Err(ClientError::Deadline { request: label.clone(), deadline: end }),
    }
}

/// The frames of a body.
struct EventStream {
    frames: FrameReader,
    body: ResponseBody,
}

impl EventStream {
    async fn next(
        &mut self,
        label: &str,
    ) -> Result<Option<(EventType, bytes::Bytes)>, ClientError> {
        loop {
            let frame = self
                .frames
                .event()
                .map_err(|cause| ClientError::Decode { request: label.to_owned(), cause })?;
            if let Some(frame) = frame {
                return Ok(Some(frame));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(cause)) => {
                    return Err(ClientError::Read { request: label.to_owned(), cause });
                }
                Some(Ok(part)) => {
                    if let Ok(data) = part.into_data() {
                        self.frames.push(&data);
                    }
                }
            }
        }
    }
}

/// An error within the stream counts like an error response.
fn error_event(label: &str, encoding: Encoding, object: &[u8]) -> ClientError {
    let Some(status) = encoding.decode_status(object) else {
        let cause = DecodeError::WatchEvent("ERROR".to_owned());
        return ClientError::Decode { request: label.to_owned(), cause };
    };
    let status = Status { code: if status.code == 0 { 500 } else { status.code }, ..status };
    ClientError::Api { request: label.to_owned(), status: Box::new(status), retry_after: None }
}

/// Watches often end and are resumed: only repeated failures are worth a warning, with growing intervals.
fn tell_trouble(resource: &str, error: &ClientError, failures: u32) {
    let error = proto_daemon::exit::chain(error);
    if failures >= 4 && failures.is_power_of_two() {
        tracing::warn!(
            resource,
            failures,
            error,
            "cannot watch or list a resource; retried with back-off"
        );
    } else {
        tracing::debug!(resource, failures, error, "cannot watch or list a resource; retried");
    }
}

fn step_failure(error: &ClientError) -> StepFailure {
    if error.is_gone() {
        return StepFailure::Gone;
    }
    // The server does not have the version yet or any more: it was restored, or is behind. Its current state counts.
    if error.code() == Some(504) || error.to_string().contains("Too large resource version") {
        return StepFailure::VersionUnknown;
    }
    if matches!(error, ClientError::TooLong { .. }) {
        return StepFailure::TooLong;
    }
    StepFailure::Other { retry_after: error.retry_after() }
}

#[cfg(test)]
mod tests;
