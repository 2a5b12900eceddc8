//! Objects from files, directories, URLs and standard input, as YAML or JSON.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use proto_api::yaml;
use serde_json::Value;

use crate::fetch::fetch;
use crate::{CommandError, Output, Session, path_pattern};

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

/// Objects of files, and why others could not be read.
#[derive(Debug, Default)]
pub struct ReadManifests {
    pub manifests: Vec<Manifest>,
    pub errors: Vec<CommandError>,
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
    let read = read_each(session, flags, output).await?;
    CommandError::collect(read.errors)?;
    Ok(read.manifests)
}

/// As [`read`], for commands that go on without the sources and documents that have no object.
///
/// # Errors
/// When a path does not exist, a directory cannot be read, or there are neither objects nor errors.
pub async fn read_each(
    session: &Session,
    flags: &FileFlags,
    output: &mut Output,
) -> Result<ReadManifests, CommandError> {
    // A mistyped path is found before anything is read.
    let mut files = Vec::new();
    for name in flags.filename.iter().filter(|name| *name != "-" && !is_url(name)) {
        let mut found = Vec::new();
        for path in paths(name)? {
            collect_files(&path, flags.recursive, 0, &mut found)?;
        }
        files.push(found);
    }
    let mut files = files.into_iter();
    let mut into = ReadManifests::default();
    for name in &flags.filename {
        if name == "-" {
            append(&mut into, "STDIN", read_text(&mut output.input).map_err(CommandError::from));
        } else if is_url(name) {
            let len_max = usize::try_from(TEXT_LEN_MAX).unwrap_or(usize::MAX);
            append(&mut into, name, fetch(session, name, len_max).await);
        } else {
            for file in files.next().unwrap_or_default() {
                append(&mut into, &file.display().to_string(), read_file(&file));
            }
        }
    }
    if into.manifests.is_empty() && into.errors.is_empty() {
        return Err(CommandError::with_text("no objects passed"));
    }
    Ok(into)
}

fn is_url(name: &str) -> bool {
    name.starts_with("http://") || name.starts_with("https://")
}

/// The paths of a word: itself, or those that match it where no file has that name.
fn paths(name: &str) -> Result<Vec<PathBuf>, CommandError> {
    let path = PathBuf::from(name);
    if path.exists() || !path_pattern::is_pattern(name) {
        return Ok(vec![path]);
    }
    let found = path_pattern::expand(name, FILES_MAX)
        .map_err(|error| CommandError::with_text(format!("cannot read {name}: {error}")))?;
    // The word itself, which does not exist, where nothing matches.
    Ok(if found.is_empty() { vec![path] } else { found })
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
fn append(into: &mut ReadManifests, source: &str, text: Result<String, CommandError>) {
    let documents = text.and_then(|text| {
        yaml::parse_all(&text)
            .map_err(|error| CommandError::with_text(format!("error parsing {source}: {error}")))
    });
    match documents {
        Ok(documents) => {
            documents.into_iter().for_each(|document| append_object(into, source, document, 0));
        }
        Err(error) => into.errors.push(error),
    }
}

fn append_object(into: &mut ReadManifests, source: &str, object: Value, depth: usize) {
    let is_list = match check_object(source, &object, depth) {
        Ok(is_list) => is_list,
        Err(error) => return into.errors.push(error),
    };
    if !is_list {
        return into.manifests.push(Manifest { source: source.to_owned(), object });
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let item_kind = text("kind").trim_end_matches("List").to_owned();
    let api_version = text("apiVersion").to_owned();
    let Value::Object(mut map) = object else { return };
    let Some(Value::Array(items)) = map.remove("items") else { return };
    for mut item in items {
        // Items of a typed list need not say what they are.
        if let Some(fields) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| item_kind.clone().into());
            fields.entry("apiVersion").or_insert_with(|| api_version.clone().into());
        }
        append_object(into, source, item, depth + 1);
    }
}

/// Whether a document is a list of objects.
///
/// # Errors
/// Why it is no object.
fn check_object(source: &str, object: &Value, depth: usize) -> Result<bool, CommandError> {
    let refuse =
        |why: &str| Err(CommandError::with_text(format!("unable to decode \"{source}\": {why}")));
    let Value::Object(map) = object else { return refuse("it has something else than objects") };
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind").is_empty() {
        return refuse("Object 'Kind' is missing");
    }
    if text("apiVersion").is_empty() {
        return refuse("Object 'apiVersion' is missing");
    }
    let is_list = text("kind").ends_with("List") && map.get("items").is_some_and(Value::is_array);
    if is_list && depth >= LISTS_MAX {
        return refuse("lists of lists are nested too deep");
    }
    Ok(is_list)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> ReadManifests {
        let mut into = ReadManifests::default();
        append(&mut into, "f", Ok(text.to_owned()));
        into
    }

    fn titles(manifests: &[Manifest]) -> Vec<String> {
        let title = |one: &Manifest| format!("{} {} {}", one.api_version(), one.kind(), one.name());
        manifests.iter().map(title).collect()
    }

    fn objects(text: &str) -> Result<Vec<String>, CommandError> {
        let read = read_one(text);
        CommandError::collect(read.errors)?;
        Ok(titles(&read.manifests))
    }

    #[test]
    fn documents_without_objects_do_not_stop_the_others() {
        let pod = |name: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n");
        let text = format!("{}---\nreplicas: 3\n---\n[1]\n---\n{}", pod("a"), pod("b"));
        let read = read_one(&text);
        assert_eq!(titles(&read.manifests), ["v1 Pod a", "v1 Pod b"]);
        let errors: Vec<String> = read.errors.iter().map(ToString::to_string).collect();
        let decode = "error: unable to decode \"f\":";
        assert_eq!(
            errors,
            [
                format!("{decode} Object 'Kind' is missing"),
                format!("{decode} it has something else than objects")
            ]
        );
    }

    #[test]
    fn a_word_is_a_path_or_a_pattern_of_paths() {
        let directory = tempfile::tempdir().expect("directory");
        for name in ["a.json", "b.json", "[c].json", "c.json"] {
            std::fs::write(directory.path().join(name), "").expect("file");
        }
        let names = |word: &str| {
            let found = paths(&directory.path().join(word).to_string_lossy()).expect("paths");
            let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
            found.iter().filter_map(name).collect::<Vec<_>>()
        };
        assert_eq!(names("[ab].json"), ["a.json", "b.json"]);
        assert_eq!(names("[c].json"), ["[c].json"], "the file of that name counts first");
        assert_eq!(names("*.yaml"), ["*.yaml"]);
        assert_eq!(names("none.yaml"), ["none.yaml"]);
    }

    #[test]
    fn documents_and_lists_become_objects() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\n\
                    apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: b}}]\n---\n\
                    apiVersion: v1\nkind: List\nitems: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: c}}]\n";
        let wanted = ["v1 Pod a", "v1 Pod b", "apps/v1 Deployment c"];
        assert_eq!(objects(text).expect("valid"), wanted);
        assert_eq!(objects("{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}").expect("JSON").len(), 1);
        assert!(
            objects("kind: Pod")
                .expect_err("no version")
                .to_string()
                .contains("'apiVersion' is missing")
        );
        assert!(
            objects("apiVersion: v1")
                .expect_err("no kind")
                .to_string()
                .contains("'Kind' is missing")
        );
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
