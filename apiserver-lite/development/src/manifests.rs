//! Reads the manifests below a directory: files ending in `.yaml`, `.yml` or `.json`, in order of their paths. Names that begin with a dot are passed over.
//! Symbolic links are followed, a directory that is reached twice is refused. Everything is bounded, and an error names file, document and field.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto_api::yaml::{self, ParseYamlError};
use serde_json::Value;

/// Deepest directory below the given one.
const DEPTH_MAX: usize = 16;
/// Most entries of all directories.
const ENTRIES_MAX: usize = 20_000;
/// Longest file: one that the server would not take as one request either.
const FILE_LEN_MAX: u64 = 3 << 20;
/// Bytes of all files.
const TOTAL_LEN_MAX: u64 = 64 << 20;
/// Most objects.
const OBJECTS_MAX: usize = 20_000;

/// An object of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestObject {
    /// Where it stands.
    pub place: ManifestPosition,
    /// The object; `apiVersion`, `kind` and `metadata` are as they should be.
    pub object: Value,
}

/// Where an object stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestPosition {
    pub file: Arc<Path>,
    /// Which of its documents, from 1.
    pub document: usize,
    /// Which item of a list, from 0.
    pub item: Option<usize>,
}

impl std::fmt::Display for ManifestPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, document {}", self.file.display(), self.document)?;
        self.item.map_or(Ok(()), |item| write!(f, ", items[{item}]"))
    }
}

/// Why manifests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The system refuses a path.
    #[error("cannot read {path}")]
    Path {
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// A directory is reached twice.
    #[error("{0} is a directory that is reached twice by symbolic links")]
    Twice(PathBuf),
    /// A bound is passed.
    #[error("{path}: {what}, the limit is {max}")]
    TooMuch {
        /// Where.
        path: PathBuf,
        /// What is too much.
        what: &'static str,
        /// The bound.
        max: u64,
    },
    /// A pipe, socket or device.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// The bytes are no text.
    #[error("{0} is not UTF-8")]
    NotText(PathBuf),
    /// The text is not YAML.
    #[error("{path} is not YAML")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: ParseYamlError,
    },
    /// The text is not JSON.
    #[error("{path} is not JSON")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// A document is no object of the API.
    #[error("{place}: {field}: {problem}")]
    Field {
        /// The document.
        place: ManifestPosition,
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads the manifests below `dir`, which may also be a file.
///
/// # Errors
/// [`ManifestError`] with the path, or with file, document and field.
pub fn read(dir: &Path) -> Result<Vec<ManifestObject>, ManifestError> {
    let mut reading = Reading::default();
    let of = metadata(dir)?;
    match of.is_dir() {
        true => reading.directory(dir, &of, 0)?,
        false => reading.file(dir, &of)?,
    }
    Ok(reading.manifests)
}

#[derive(Default)]
struct Reading {
    manifests: Vec<ManifestObject>,
    /// Device and number of the directories.
    seen: BTreeSet<(u64, u64)>,
    entries: usize,
    bytes: u64,
}

impl Reading {
    fn directory(&mut self, dir: &Path, of: &Metadata, depth: usize) -> Result<(), ManifestError> {
        if !self.seen.insert((of.dev(), of.ino())) {
            return Err(ManifestError::Twice(dir.to_owned()));
        }
        if depth > DEPTH_MAX {
            return Err(too_much(dir, "directory too deep", DEPTH_MAX as u64));
        }
        for path in self.entries(dir)? {
            let of = metadata(&path)?;
            if of.is_dir() {
                self.directory(&path, &of, depth.saturating_add(1))?;
            } else if is_manifest(&path) {
                self.file(&path, &of)?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, dir: &Path) -> Result<Vec<PathBuf>, ManifestError> {
        let failed = |source| ManifestError::Path { path: dir.to_owned(), source };
        let mut paths = Vec::new();
        for entry in dir.read_dir().map_err(failed)? {
            self.entries = self.entries.saturating_add(1);
            if self.entries > ENTRIES_MAX {
                return Err(too_much(dir, "too many entries of directories", ENTRIES_MAX as u64));
            }
            let entry = entry.map_err(failed)?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                paths.push(entry.path());
            }
        }
        paths.sort_unstable();
        Ok(paths)
    }

    fn file(&mut self, path: &Path, of: &Metadata) -> Result<(), ManifestError> {
        if !of.is_file() {
            return Err(ManifestError::NotAFile(path.to_owned()));
        }
        let failed = |source| ManifestError::Path { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        // One more than allowed, to see that there is more; the file may grow meanwhile.
        file.take(FILE_LEN_MAX.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
        let len = bytes.len() as u64;
        if len > FILE_LEN_MAX {
            return Err(too_much(path, "too many bytes", FILE_LEN_MAX));
        }
        self.bytes = self.bytes.saturating_add(len);
        if self.bytes > TOTAL_LEN_MAX {
            return Err(too_much(path, "too many bytes in all files", TOTAL_LEN_MAX));
        }
        let text = String::from_utf8(bytes).map_err(|_| ManifestError::NotText(path.to_owned()))?;
        let file: Arc<Path> = path.into();
        for (nth, document) in documents(path, &text)?.into_iter().enumerate() {
            let place = ManifestPosition {
                file: file.clone(),
                document: nth.saturating_add(1),
                item: None,
            };
            self.document(place, document)?;
        }
        Ok(())
    }

    /// A document is an object or a list of objects.
    fn document(
        &mut self,
        place: ManifestPosition,
        mut document: Value,
    ) -> Result<(), ManifestError> {
        let kind = document["kind"].as_str().unwrap_or_default();
        let Some(Value::Array(items)) =
            kind.ends_with("List").then(|| document.get_mut("items").map(Value::take)).flatten()
        else {
            return self.object(place, document);
        };
        for (nth, item) in items.into_iter().enumerate() {
            self.object(ManifestPosition { item: Some(nth), ..place.clone() }, item)?;
        }
        Ok(())
    }

    fn object(&mut self, place: ManifestPosition, object: Value) -> Result<(), ManifestError> {
        if self.manifests.len() >= OBJECTS_MAX {
            return Err(too_much(&place.file, "too many objects", OBJECTS_MAX as u64));
        }
        if let Some((field, problem)) = fault(&object) {
            return Err(ManifestError::Field { place, field, problem: problem.to_owned() });
        }
        self.manifests.push(ManifestObject { place, object });
        Ok(())
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|of| ending == *of))
}

fn documents(path: &Path, text: &str) -> Result<Vec<Value>, ManifestError> {
    if path.extension().is_some_and(|ending| ending == "json") {
        let failed = |source| ManifestError::Json { path: path.to_owned(), source };
        return Ok(vec![serde_json::from_str(text).map_err(failed)?]);
    }
    yaml::parse_all(text).map_err(|source| ManifestError::Yaml { path: path.to_owned(), source })
}

/// What an object lacks: the field, and the problem.
fn fault(object: &Value) -> Option<(&'static str, &'static str)> {
    if !object.is_object() {
        return Some(("(document)", "expected an object with apiVersion and kind"));
    }
    for field in ["apiVersion", "kind"] {
        if object[field].as_str().is_none_or(str::is_empty) {
            return Some((field, "expected a text"));
        }
    }
    let metadata = &object["metadata"];
    if !metadata.is_object() {
        return Some(("metadata", "expected an object"));
    }
    for field in ["name", "generateName", "namespace"] {
        if metadata.get(field).is_some_and(|value| !value.is_string()) {
            return Some(("metadata", "name, generateName and namespace: expected texts"));
        }
    }
    let named = ["name", "generateName"].iter();
    let named = named.filter_map(|field| metadata[field].as_str()).any(|text| !text.is_empty());
    (!named).then_some(("metadata.name", "expected a text"))
}

fn metadata(path: &Path) -> Result<Metadata, ManifestError> {
    path.metadata().map_err(|source| ManifestError::Path { path: path.to_owned(), source })
}

fn too_much(path: &Path, what: &'static str, max: u64) -> ManifestError {
    ManifestError::TooMuch { path: path.to_owned(), what, max }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proto_daemon::exit::chain;

    use super::*;

    fn load_error(dir: &Path) -> String {
        chain(&read(dir).expect_err("refused"))
    }

    fn map(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
    }

    #[test]
    fn files_are_read_in_order_and_lists_are_taken_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("b")).unwrap();
        fs::create_dir(at(".git")).unwrap();
        fs::write(at(".git/x.yaml"), "[").unwrap();
        fs::write(at("README.md"), [0xff]).unwrap();
        fs::write(at("b/two.yml"), format!("{}---\n---\n{}", map("b1"), map("b2"))).unwrap();
        let item = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c1"}}"#;
        let list = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{item}]}}"#);
        fs::write(at("c.json"), list).unwrap();
        fs::write(at("a.yaml"), map("a1")).unwrap();
        symlink(at("a.yaml"), at("d.yaml")).unwrap();
        let read = read(dir.path()).unwrap();
        let names: Vec<&str> =
            read.iter().map(|one| one.object["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a1", "b1", "b2", "c1", "a1"]);
        let place = |nth: usize| read[nth].place.to_string();
        assert!(place(2).ends_with("b/two.yml, document 2"), "{}", place(2));
        assert!(place(3).ends_with("c.json, document 1, items[0]"), "{}", place(3));
    }

    #[test]
    fn errors_name_file_document_and_field() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let check = |text: &str, expected: &str| {
            fs::write(&file, text).unwrap();
            let load_error = load_error(dir.path());
            assert!(
                load_error.contains("a.yaml") && load_error.contains(expected),
                "{text}: {load_error}"
            );
        };
        check("[", "is not YAML");
        check(&format!("{}---\nkind: A\n", map("a")), "document 2: apiVersion: expected");
        check("apiVersion: v1\nmetadata: {name: a}\n", "document 1: kind: expected");
        check("apiVersion: v1\nkind: A\n", "metadata: expected an object");
        check("apiVersion: v1\nkind: A\nmetadata: {name: 3}\n", "metadata: name");
        check("apiVersion: v1\nkind: A\nmetadata: {labels: {}}\n", "metadata.name: expected");
        check("- a\n", "(document): expected an object");
        check("kind: List\napiVersion: v1\nitems: [1]\n", "items[0]: (document)");
    }

    #[test]
    fn hostile_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let alone = |name: &str, content: &[u8], expected: &str| {
            fs::write(at(name), content).unwrap();
            let load_error = load_error(dir.path());
            assert!(
                load_error.contains(name) && load_error.contains(expected),
                "{name}: {load_error}"
            );
            fs::remove_file(at(name)).unwrap();
        };
        alone("binary.yaml", &[0xff, 0xfe, 0], "is not UTF-8");
        alone("nul.yaml", &[0; 64], "nul.yaml");
        alone("huge.yaml", &vec![b'#'; FILE_LEN_MAX as usize + 1], "too many bytes");
        let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
        alone("deep.json", deep("[", "]").as_bytes(), "is not JSON");
        alone("deep.yaml", deep("[", "]").as_bytes(), "is not YAML");
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (now, before) in ('b'..='m').zip('a'..='l') {
            let refers = format!("*{before}, ").repeat(9);
            bomb.push_str(&format!("{now}: &{now} [{refers}]\n"));
        }
        alone("bomb.yaml", bomb.as_bytes(), "is not YAML");
    }

    #[test]
    fn hostile_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink(dir.path(), at("loop")).unwrap();
        assert!(load_error(dir.path()).contains("reached twice"), "{}", load_error(dir.path()));
        fs::remove_file(at("loop")).unwrap();
        symlink(at("self.yaml"), at("self.yaml")).unwrap();
        assert!(load_error(dir.path()).contains("self.yaml"), "{}", load_error(dir.path()));
        fs::remove_file(at("self.yaml")).unwrap();
        symlink(at("nowhere"), at("lost.yaml")).unwrap();
        assert!(load_error(dir.path()).contains("lost.yaml"), "{}", load_error(dir.path()));
        fs::remove_file(at("lost.yaml")).unwrap();
        // Opening it would wait for a writer.
        nix::unistd::mkfifo(&at("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(
            load_error(dir.path()).contains("not a regular file"),
            "{}",
            load_error(dir.path())
        );
        fs::remove_file(at("pipe.yaml")).unwrap();
        let deep: PathBuf = std::iter::repeat_n("d", DEPTH_MAX + 1).collect();
        fs::create_dir_all(dir.path().join(deep)).unwrap();
        assert!(load_error(dir.path()).contains("too deep"), "{}", load_error(dir.path()));
        assert!(load_error(&at("missing")).contains("missing"));
    }

    #[test]
    fn the_number_of_objects_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let item = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}"#;
        let items = vec![item; OBJECTS_MAX + 1].join(",");
        let text = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{items}]}}"#);
        fs::write(dir.path().join("a.json"), text).unwrap();
        assert!(load_error(dir.path()).contains("too many objects"), "{}", load_error(dir.path()));
    }
}
