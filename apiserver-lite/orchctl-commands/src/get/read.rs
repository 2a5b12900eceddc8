//! Requests of the command: each is for one object or one collection.

use orchctl_client::manifests;
use orchctl_client::names::{self, ResourceTuple};
use orchctl_client::{ApiResource, CommandError, Output, Session};
use orchctl_printers::{objects, table};
use proto_api::Collection;
use proto_client::request;
use proto_client::{ClientError, ListParams};
use serde_json::Value;

use super::{Args, SelectFlags};

/// Most pages of a list.
const PAGES_MAX: usize = 100_000;

/// One object or one collection.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) resource: ApiResource,
    pub(super) name: Option<String>,
    /// Not set for all namespaces, and outside of them.
    pub(super) namespace: Option<String>,
}

/// The requested form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseForm {
    Objects,
    /// A table, whose rows have the metadata of objects, or (for sorting) whole objects.
    Table {
        whole_objects: bool,
    },
}

impl Question {
    pub(super) fn collection(&self) -> Collection {
        self.resource.collection(self.namespace.as_deref())
    }
}

/// Reads the arguments or files of the command.
pub(super) async fn questions(
    session: &Session,
    args: &Args,
    output: &mut Output,
) -> Result<Vec<Question>, CommandError> {
    let discovery = session.discovery().await?;
    let current = session.namespace()?;
    if !args.files.filename.is_empty() {
        if !args.args.is_empty() {
            return Err(CommandError::with_text(
                "objects are named either by arguments or by files",
            ));
        }
        let mut questions = Vec::new();
        for manifest in manifests::read(session, &args.files, output).await? {
            let resource = discovery.served_kind(manifest.api_version(), manifest.kind())?.clone();
            let namespace = manifest.namespace().unwrap_or(current).to_owned();
            let namespace = Some(namespace).filter(|_| resource.namespaced);
            let name = Some(manifest.name().to_owned());
            questions.push(Question { resource, name, namespace });
        }
        return Ok(questions);
    }
    if args.args.is_empty() {
        return Err(CommandError::Plain(
            "You must specify the type of resource to get. Use \"orchctl api-resources\" for a list of the types that the server has.\n\
             error: Required resource not specified."
                .to_owned(),
        ));
    }
    let selections = names::parse(discovery, &args.args)?;
    let several = args.args.first().is_some_and(|first| first.contains(','))
        || discovery.category(args.args.first().map_or("", String::as_str)).len() > 1;
    let mut questions = Vec::new();
    for ResourceTuple { resource, name } in selections {
        check(args, &name)?;
        // A category or a list of types may hold some that cannot be listed.
        if several && name.is_none() && !resource.has_verb("list") {
            continue;
        }
        let namespace = Some(current.to_owned());
        let namespace = namespace.filter(|_| resource.namespaced && !args.all_namespaces);
        questions.push(Question { resource, name, namespace });
    }
    Ok(questions)
}

fn check(args: &Args, name: &Option<String>) -> Result<(), CommandError> {
    let select = &args.select;
    if name.is_some() {
        if args.all_namespaces {
            let text = "a resource cannot be retrieved by name across all namespaces";
            return Err(CommandError::with_text(text));
        }
        if select.selector.is_some() {
            return Err(CommandError::with_text(
                "name cannot be provided when a selector is specified",
            ));
        }
        if select.field_selector.is_some() {
            return Err(CommandError::with_text(
                "name cannot be provided when a field selector is specified",
            ));
        }
    } else if select.subresource.is_some() {
        return Err(CommandError::with_text("subresources are those of named objects"));
    }
    Ok(())
}

/// Lists from the server, page by page.
pub(super) async fn list_pages(
    session: &Session,
    question: &Question,
    select: &SelectFlags,
    wanted: ResponseForm,
) -> Result<Value, CommandError> {
    let collection = question.collection();
    if let Some(name) = &question.name {
        let path = collection.item(name, select.subresource.as_deref());
        return send(session, path, None, wanted).await;
    }
    let mut params = params(select);
    let mut whole: Option<Value> = None;
    let list = if wanted == ResponseForm::Objects { "items" } else { "rows" };
    for _ in 0..PAGES_MAX {
        let page = send(session, collection.path(), Some(&params), wanted).await;
        let mut page = page.map_err(|error| name_selectors(error, question, select))?;
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        match &mut whole {
            None => whole = Some(page),
            Some(whole) => {
                let more = page.get_mut(list).map(Value::take);
                if let (Some(Value::Array(all)), Some(Value::Array(more))) =
                    (whole.get_mut(list), more)
                {
                    all.extend(more);
                }
            }
        }
        if next.is_empty() {
            break;
        }
        params.continue_ = Some(next);
    }
    Ok(whole.unwrap_or_default())
}

/// Adds the requested resource to the error of a list, which the server omits.
fn name_selectors(error: CommandError, question: &Question, select: &SelectFlags) -> CommandError {
    let (label, field) = (&select.selector, &select.field_selector);
    let asked = label.is_some() || field.is_some();
    match error {
        CommandError::Client(ClientError::Api { request, mut status, retry_after })
            if asked && matches!(status.code, 400 | 404) =>
        {
            let resource = &question.resource;
            status.message = format!(
                "Unable to find \"{}/{}, Resource={}\" that match label selector \"{}\", field selector \"{}\": {}",
                resource.group,
                resource.version,
                resource.plural,
                label.as_deref().unwrap_or_default(),
                field.as_deref().unwrap_or_default(),
                status.message
            );
            CommandError::Client(ClientError::Api { request, status, retry_after })
        }
        other => other,
    }
}

/// Selectors and the size of pages.
pub(super) fn params(select: &SelectFlags) -> ListParams {
    ListParams {
        label_selector: select.selector.clone().unwrap_or_default(),
        field_selector: select.field_selector.clone().unwrap_or_default(),
        limit: Some(select.chunk_size).filter(|size| *size > 0),
        ..ListParams::default()
    }
}

async fn send(
    session: &Session,
    path: String,
    params: Option<&ListParams>,
    wanted: ResponseForm,
) -> Result<Value, CommandError> {
    let (path, whole) = match wanted {
        ResponseForm::Table { whole_objects } => (path, whole_objects),
        ResponseForm::Objects => (path, false),
    };
    let mut request = match params {
        Some(params) => request::list(path, params),
        None => request::get(path),
    };
    if wanted != ResponseForm::Objects {
        accept_table(session, &mut request, whole).await?;
    }
    session.call_json(request).await
}

/// Requests a table instead of objects.
pub(crate) async fn accept_table(
    session: &Session,
    request: &mut http::Request<bytes::Bytes>,
    whole_objects: bool,
) -> Result<(), CommandError> {
    let group = session.names().await?.group("meta");
    let accept = format!("application/json;as=Table;v=v1;g={group},application/json");
    if let Ok(accept) = accept.parse() {
        request.headers_mut().insert(http::header::ACCEPT, accept);
    }
    if whole_objects {
        let uri = request.uri();
        let separator = if uri.query().is_some() { '&' } else { '?' };
        if let Ok(uri) = format!("{uri}{separator}includeObject=Object").parse() {
            *request.uri_mut() = uri;
        }
    }
    Ok(())
}

/// A table of an answer: the server's, or names and ages if it made none.
pub(super) fn as_table(answer: Value, now: i64) -> Value {
    if table::is_table(&answer) { answer } else { table::plain(&objects::into_items(answer), now) }
}
