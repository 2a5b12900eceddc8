//! Objects from files, directories, URLs and standard input, as YAML or JSON.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use proto_api::yaml;
use proto_client::{Client, ClientConfig, request};
use serde_json::Value;

use crate::{CommandError, Output, Session};

/// Longest file, answer or input.
const TEXT_LEN_MAX: u64 = 64 << 20;
/// Most files of a command.
const FILES_MAX: usize = 10_000;
/// Deepest directory that `-R` enters.
const DEPTH_MAX: usize = 32;
/// Deepest list of lists.
const LISTS_MAX: usize = 8;

/// Where a command's objects come from.
#[derive(Args, Clone, Debug, Default)]
pub struct FileFlags {
    /// File, directory, URL or - for standard input; repeatable
    #[arg(long = "filename", short = 'f', value_name = "FILE", value_delimiter = ',')]
    pub filename: Vec<String>,
    /// Enter directories below those of --filename
    #[arg(long, short = 'R')]
    pub recursive: bool,
}

/// An object, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// File, URL or `STDIN`, for messages.
    pub source: String,
    pub object: Value,
}

impl Manifest {
    /// Its `apiVersion`.
    pub fn api_version(&self) -> &str {
        self.object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn kind(&self) -> &str {
        self.object.get("kind").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its name; empty if it has none.
    pub fn name(&self) -> &str {
        self.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its namespace, if it names one.
    pub fn namespace(&self) -> Option<&str> {
        let namespace = self.object.pointer("/metadata/namespace").and_then(Value::as_str);
        namespace.filter(|namespace| !namespace.is_empty())
    }
}

/// Reads all objects that `flags` name; lists are taken apart.
///
/// # Errors
/// When a source cannot be read or has something else than objects.
pub async fn read(
    session: &Session,
    flags: &FileFlags,
    output: &mut Output,
) -> Result<Vec<Manifest>, CommandError> {
    let mut manifests = Vec::new();
    for name in &flags.filename {
        if name == "-" {
            append(&mut manifests, "STDIN", &read_text(&mut output.input)?)?;
        } else if name.starts_with("http://") || name.starts_with("https://") {
            append(&mut manifests, name, &fetch(session, name).await?)?;
        } else {
            let mut files = Vec::new();
            collect_files(Path::new(name), flags.recursive, 0, &mut files)?;
            for file in files {
                append(&mut manifests, &file.display().to_string(), &read_file(&file)?)?;
            }
        }
    }
    if manifests.is_empty() {
        return Err(CommandError::with_text("no objects passed"));
    }
    Ok(manifests)
}

/// The bytes of one file, or of standard input for `-`.
///
/// # Errors
/// When it cannot be read, or is too long.
pub fn read_bytes(name: &str, output: &mut Output) -> Result<bytes::Bytes, CommandError> {
    let cannot = |error| CommandError::with_text(format!("cannot read {name}: {error}"));
    let mut input: Box<dyn Read + '_> = match name {
        "-" => Box::new(&mut output.input),
        path => Box::new(std::fs::File::open(path).map_err(cannot)?),
    };
    let mut bytes = Vec::new();
    let len = (&mut input).take(TEXT_LEN_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if len as u64 > TEXT_LEN_MAX {
        let why = format!("it has more than {TEXT_LEN_MAX} bytes");
        return Err(cannot(std::io::Error::other(why)));
    }
    Ok(bytes.into())
}

/// Adds the objects of a text.
///
/// # Errors
/// When it has something else than objects.
fn append(into: &mut Vec<Manifest>, source: &str, text: &str) -> Result<(), CommandError> {
    let documents = yaml::parse_all(text)
        .map_err(|error| CommandError::with_text(format!("error parsing {source}: {error}")))?;
    documents.into_iter().try_for_each(|document| append_object(into, source, document, 0))
}

fn append_object(
    into: &mut Vec<Manifest>,
    source: &str,
    object: Value,
    depth: usize,
) -> Result<(), CommandError> {
    let wrong =
        |what: &str| Err(CommandError::with_text(format!("unable to decode \"{source}\": {what}")));
    let Value::Object(map) = &object else { return wrong("it has something else than objects") };
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind").is_empty() {
        return wrong("Object 'Kind' is missing");
    }
    if text("apiVersion").is_empty() {
        return wrong("Object 'apiVersion' is missing");
    }
    if !text("kind").ends_with("List") || !map.get("items").is_some_and(Value::is_array) {
        into.push(Manifest { source: source.to_owned(), object });
        return Ok(());
    }
    if depth >= LISTS_MAX {
        return wrong("lists of lists are nested too deep");
    }
    let item_kind = text("kind").trim_end_matches("List").to_owned();
    let api_version = text("apiVersion").to_owned();
    let Value::Object(mut map) = object else { return Ok(()) };
    let Some(Value::Array(items)) = map.remove("items") else { return Ok(()) };
    for mut item in items {
        // Items of a typed list need not say what they are.
        if let Some(fields) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| item_kind.clone().into());
            fields.entry("apiVersion").or_insert_with(|| api_version.clone().into());
        }
        append_object(into, source, item, depth + 1)?;
    }
    Ok(())
}

/// The files of a path: itself, or those of a directory that are manifests by their names.
fn collect_files(
    path: &Path,
    recursive: bool,
    depth: usize,
    files: &mut Vec<PathBuf>,
) -> Result<(), CommandError> {
    let cannot = |error: std::io::Error| {
        CommandError::with_text(format!("cannot read {}: {error}", path.display()))
    };
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            CommandError::with_text(format!("the path \"{}\" does not exist", path.display()))
        }
        _ => cannot(error),
    })?;
    if !metadata.is_dir() {
        if files.len() >= FILES_MAX {
            return Err(CommandError::with_text(format!("more than {FILES_MAX} files are named")));
        }
        files.push(path.to_owned());
        return Ok(());
    }
    if depth > DEPTH_MAX {
        return Err(CommandError::with_text(format!("{} is nested too deep", path.display())));
    }
    let entries = std::fs::read_dir(path).map_err(cannot)?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(cannot)?;
    paths.sort();
    for inner in paths {
        let is_dir = inner.is_dir();
        let is_manifest = inner.extension().is_some_and(|extension| {
            ["json", "yaml", "yml"].iter().any(|known| extension == *known)
        });
        if is_dir && recursive || !is_dir && is_manifest {
            collect_files(&inner, recursive, depth + 1, files)?;
        }
    }
    Ok(())
}

/// The whole text; a longer one than [`TEXT_LEN_MAX`] is an error, since half of it would look like all of it.
fn read_text(input: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    let len = input.take(TEXT_LEN_MAX + 1).read_to_string(&mut text)?;
    if len as u64 > TEXT_LEN_MAX {
        return Err(std::io::Error::other(format!("it has more than {TEXT_LEN_MAX} bytes")));
    }
    Ok(text)
}

fn read_file(path: &Path) -> Result<String, CommandError> {
    let read = || read_text(std::fs::File::open(path)?);
    read().map_err(|error| {
        CommandError::with_text(format!("cannot read {}: {error}", path.display()))
    })
}

async fn fetch(session: &Session, url: &str) -> Result<String, CommandError> {
    let wrong =
        |why: String| CommandError::with_text(format!("unable to read URL \"{url}\": {why}"));
    let address: http::Uri = url.parse().map_err(|_| wrong("it is not a URL".to_owned()))?;
    let path = address.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut parts = address.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let server = http::Uri::from_parts(parts).map_err(|error| wrong(error.to_string()))?;
    let client = Client::new(
        &ClientConfig::direct(server),
        <&proto_api::names::Names>::default(),
        "orchctl",
    )
    .map_err(|error| wrong(proto_daemon::exit::chain(&error)))?
    .with_body_len_max(usize::try_from(TEXT_LEN_MAX).unwrap_or(usize::MAX));
    let client = match session.timeout()? {
        std::time::Duration::ZERO => client,
        timeout => client.with_deadline(timeout),
    };
    let answer = client.call(request::get(path)).await;
    let answer = answer.map_err(|error| wrong(proto_daemon::exit::chain(&error)))?;
    String::from_utf8(answer.body.to_vec()).map_err(|_| wrong("it is not valid UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Result<Vec<String>, String> {
        let mut into = Vec::new();
        append(&mut into, "f", text).map_err(|error| error.to_string())?;
        Ok(into
            .iter()
            .map(|one| format!("{} {} {}", one.api_version(), one.kind(), one.name()))
            .collect())
    }

    #[test]
    fn documents_and_lists_become_objects() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\n\
                    apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: b}}]\n---\n\
                    apiVersion: v1\nkind: List\nitems: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: c}}]\n";
        let wanted = ["v1 Pod a", "v1 Pod b", "apps/v1 Deployment c"];
        assert_eq!(objects(text).expect("valid"), wanted);
        assert_eq!(objects("{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}").expect("JSON").len(), 1);
        assert!(objects("kind: Pod").expect_err("no version").contains("'apiVersion' is missing"));
        assert!(objects("apiVersion: v1").expect_err("no kind").contains("'Kind' is missing"));
        assert!(objects("[1]").is_err());
    }

    #[test]
    fn directories_have_their_manifests() {
        let directory = tempfile::tempdir().expect("directory");
        let sub = directory.path().join("sub");
        std::fs::create_dir(&sub).expect("directory");
        for name in ["b.yaml", "a.json", "c.txt", "sub/d.yml"] {
            std::fs::write(directory.path().join(name), "").expect("file");
        }
        let names = |recursive| {
            let mut files = Vec::new();
            collect_files(directory.path(), recursive, 0, &mut files).expect("readable");
            files
                .iter()
                .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["a.json", "b.yaml"]);
        assert_eq!(names(true), ["a.json", "b.yaml", "d.yml"]);
        let mut files = Vec::new();
        assert!(collect_files(Path::new("/no/such"), false, 0, &mut files).is_err());
    }
}
