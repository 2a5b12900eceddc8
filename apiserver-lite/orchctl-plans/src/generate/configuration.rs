//! ConfigMaps and Secrets.

use apiserver_schema::validate::names;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;
use serde_json::{Map, Value, json};

use super::object;
use crate::ArgumentError;

/// One entry: a key and its content.
pub type DataEntry = (String, Vec<u8>);

/// Whether a text may be a key of a ConfigMap or Secret.
fn check_key(key: &str) -> Result<(), ArgumentError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() || key.len() > 253 || !key.chars().all(allowed) || matches!(key, "." | "..") {
        return Err(ArgumentError::new(format!(
            "{key:?} is not valid as a key: it must consist of letters, digits, '-', '_' or '.'"
        )));
    }
    Ok(())
}

/// Reads `key=value` of `--from-literal`.
///
/// # Errors
/// When there is no key.
pub fn parse_literal(text: &str) -> Result<DataEntry, ArgumentError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            // Quotes that a shell did not remove are removed here.
            let value = value.trim_matches(['\'', '"']);
            Ok((key.to_owned(), value.as_bytes().to_vec()))
        }
        _ => Err(ArgumentError::new(format!("invalid literal source {text}, expected key=value"))),
    }
}

/// The entries of the file called `name`, with lines `KEY=value`, or `KEY` for a variable of the environment; empty lines and those that start with `#` do
/// not count.
///
/// # Errors
/// When a line is not valid UTF-8, or its key is not the name of a variable.
pub fn parse_env_file(
    name: &str,
    content: &[u8],
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<DataEntry>, ArgumentError> {
    let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content);
    let mut entries = Vec::new();
    for (at, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| {
            let number = at.saturating_add(1);
            ArgumentError::new(format!(
                "env file {name} contains invalid utf8 bytes at line {number}"
            ))
        })?;
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (line, None),
        };
        let wrong = names::env_name(key);
        if !wrong.is_empty() {
            let wrong = wrong.join(";");
            return Err(ArgumentError::new(format!("{key:?} is not a valid key name: {wrong}")));
        }
        let value = value.or_else(|| environment(key)).unwrap_or_default();
        entries.push((key.to_owned(), value.into_bytes()));
    }
    Ok(entries)
}

fn check_entries(name: &str, entries: &[DataEntry]) -> Result<(), ArgumentError> {
    let mut seen = std::collections::HashSet::new();
    for (key, _) in entries {
        check_key(key)?;
        if !seen.insert(key) {
            return Err(ArgumentError::new(format!(
                "cannot add key {key:?}, another key by that name already exists in the data of {name:?}"
            )));
        }
    }
    Ok(())
}

/// A ConfigMap. What is not text goes into `binaryData`.
///
/// # Errors
/// When a key is invalid or there twice.
pub fn config_map(
    name: &str,
    entries: &[DataEntry],
    immutable: bool,
) -> Result<Value, ArgumentError> {
    check_entries(name, entries)?;
    let (mut texts, mut binaries) = (Map::new(), Map::new());
    let mut sorted: Vec<&DataEntry> = entries.iter().collect();
    sorted.sort();
    for (key, content) in sorted {
        match std::str::from_utf8(content) {
            Ok(text) => drop(texts.insert(key.clone(), json!(text))),
            Err(_) => drop(binaries.insert(key.clone(), json!(STANDARD.encode(content)))),
        }
    }
    let mut object = object("ConfigMap", "v1", name);
    if immutable {
        object.insert("immutable".into(), json!(true));
    }
    for (field, map) in [("data", texts), ("binaryData", binaries)] {
        if !map.is_empty() {
            object.insert(field.into(), Value::Object(map));
        }
    }
    Ok(Value::Object(object))
}

/// A Secret of a type; empty for `Opaque`.
///
/// # Errors
/// When a key is invalid or there twice.
pub fn secret(name: &str, kind: &str, entries: &[DataEntry]) -> Result<Value, ArgumentError> {
    check_entries(name, entries)?;
    let mut sorted: Vec<&DataEntry> = entries.iter().collect();
    sorted.sort();
    let data: Map<String, Value> = sorted
        .into_iter()
        .map(|(key, content)| (key.clone(), json!(STANDARD.encode(content))))
        .collect();
    let mut object = object("Secret", "v1", name);
    if !data.is_empty() {
        object.insert("data".into(), Value::Object(data));
    }
    if !kind.is_empty() {
        object.insert("type".into(), json!(kind));
    }
    Ok(Value::Object(object))
}

/// A Secret with a certificate chain and its key, both PEM.
///
/// # Errors
/// Never for these keys.
pub fn tls_secret(
    names: &Names,
    name: &str,
    chain: Vec<u8>,
    key: Vec<u8>,
) -> Result<Value, ArgumentError> {
    secret(name, &names.label("tls"), &[("tls.crt".into(), chain), ("tls.key".into(), key)])
}

/// Who logs in at a registry of images.
#[derive(Clone, Copy)]
pub struct RegistryLogin<'a> {
    /// Its URL.
    pub server: &'a str,
    /// The user.
    pub username: &'a str,
    pub password: &'a str,
    /// An address; may be empty.
    pub email: &'a str,
}

/// A Secret with which images are pulled.
///
/// # Errors
/// Never for this key.
pub fn registry_secret(
    names: &Names,
    name: &str,
    login: RegistryLogin,
) -> Result<Value, ArgumentError> {
    let auth = STANDARD.encode(format!("{}:{}", login.username, login.password));
    let mut entry = Map::new();
    for (field, text) in [
        ("username", login.username),
        ("password", login.password),
        ("email", login.email),
        ("auth", auth.as_str()),
    ] {
        if !text.is_empty() {
            entry.insert(field.into(), json!(text));
        }
    }
    let content = json!({"auths": {login.server: entry}}).to_string().into_bytes();
    secret(name, &names.label("dockerconfigjson"), &[(".dockerconfigjson".into(), content)])
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn config_maps_hold_text_and_bytes() {
        let entries =
            [parse_literal("c=d").expect("valid"), parse_literal("a='b'").expect("valid")];
        assert_eq!(
            config_map("c", &entries, false).expect("valid").to_string(),
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c","creationTimestamp":null},"data":{"a":"b","c":"d"}}"#
        );
        let binary = config_map("c", &[("x".into(), vec![0xff])], true).expect("valid");
        assert_eq!(binary["binaryData"], json!({"x": "/w=="}));
        assert_eq!((binary.get("data"), binary.get("immutable")), (None, Some(&json!(true))));
        for wrong in [("a/b", "1"), ("", "1"), ("..", "1")] {
            let entry = (wrong.0.to_owned(), wrong.1.as_bytes().to_vec());
            assert!(config_map("c", &[entry], false).is_err(), "{wrong:?}");
        }
        let twice = [("a".to_owned(), Vec::new()), ("a".to_owned(), Vec::new())];
        assert!(config_map("c", &twice, false).is_err());
    }

    #[test]
    fn secrets_have_types() {
        let names = Names::new(Profile::Kubernetes);
        let login = RegistryLogin {
            server: "https://index.docker.io/v1/",
            username: "u",
            password: "p",
            email: "e",
        };
        assert_eq!(
            registry_secret(names, "s", login).expect("valid").to_string(),
            r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s","creationTimestamp":null},"data":{".dockerconfigjson":"eyJhdXRocyI6eyJodHRwczovL2luZGV4LmRvY2tlci5pby92MS8iOnsidXNlcm5hbWUiOiJ1IiwicGFzc3dvcmQiOiJwIiwiZW1haWwiOiJlIiwiYXV0aCI6ImRUcHcifX19"},"type":"kubernetes.io/dockerconfigjson"}"#
        );
        let tls = tls_secret(names, "t", b"c".to_vec(), b"k".to_vec()).expect("valid");
        assert_eq!(tls["data"], json!({"tls.crt": "Yw==", "tls.key": "aw=="}));
        assert!(secret("s", "", &[]).expect("valid").get("type").is_none());
    }

    #[test]
    fn files_of_variables_have_lines() {
        let environment = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        let read = |content: &[u8]| parse_env_file("f", content, environment);
        let entry = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
        let text = "\u{feff}# comment\r\n\nA=1\r\n  B=x=y \nC=\n\tHOME\n \t\nUNSET\r\n-a.b=\u{e9}";
        let wanted = [
            entry("A", "1"),
            entry("B", "x=y "),
            entry("C", ""),
            entry("HOME", "/root"),
            entry("UNSET", ""),
            entry("-a.b", "\u{e9}"),
        ];
        assert_eq!(read(text.as_bytes()).expect("valid"), wanted);
        for (content, wanted) in [
            (
                &b"A=1\n123\n"[..],
                "\"123\" is not a valid key name: a valid environment variable name",
            ),
            (b"1A=1", "\"1A\" is not a valid key name: "),
            (b"b ad", "\"b ad\" is not a valid key name: "),
            (b"HOME ", "\"HOME \" is not a valid key name: "),
            (b"A =1", "\"A \" is not a valid key name: "),
            (b"=1", "\"\" is not a valid key name: "),
            (b"..x=1", "\"..x\" is not a valid key name: must not start with '..'"),
            (b".=1", "\".\" is not a valid key name: must not be '.'"),
            ("X=1\n\u{feff}B=2".as_bytes(), "B\" is not a valid key name: "),
            ("\u{e9}=1".as_bytes(), "\"\u{e9}\" is not a valid key name: "),
            (b"B=1\nA=\xff", "env file f contains invalid utf8 bytes at line 2"),
        ] {
            let error = read(content).expect_err("refused").to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
