//! Bootstrap tokens: their text, their Secret, and what of it is listed.

use std::time::Duration;

use apiserver_signers::bootstrap::tokens::is_secret;

pub use apiserver_signers::bootstrap::tokens::is_id;
use proto_api::Time;
use proto_api::core::v1::Secret;
use proto_api::names::Names;
use rand::RngExt as _;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::BootstrapError;

/// How long a token lasts unless it is said, as kubeadm's.
pub const TTL: Duration = Duration::from_secs(24 * 3600);
/// What a token may be used for.
pub const USAGES: [&str; 2] = ["signing", "authentication"];
/// What groups of tokens begin with.
const GROUP_PREFIX: &str = "system:bootstrappers:";
const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// `<id>.<secret>`.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// The public part.
    pub id: String,
    /// The other.
    pub secret: String,
}

impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.(..)", self.id)
    }
}

impl BootstrapToken {
    /// Reads a token.
    ///
    /// # Errors
    /// It has another form. The error does not show it.
    pub fn parse(text: &str) -> Result<Self, BootstrapError> {
        match text.split_once('.') {
            Some((id, secret)) if is_id(id) && is_secret(secret) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => Err(BootstrapError::Invalid(
                "the bootstrap token must have the form [a-z0-9]{6}.[a-z0-9]{16}".to_owned(),
            )),
        }
    }

    /// The id of a token that is given as a whole or by its id.
    ///
    /// # Errors
    /// It is neither. The error does not show it.
    pub fn parse_id(text: &str) -> Result<&str, BootstrapError> {
        let id = text.split('.').next().unwrap_or_default();
        let is_one = if id == text { is_id(text) } else { Self::parse(text).is_ok() };
        match is_one {
            true => Ok(id),
            false => Err(BootstrapError::Invalid(
                "a token has the form [a-z0-9]{6}.[a-z0-9]{16}, its id [a-z0-9]{6}".to_owned(),
            )),
        }
    }

    /// A new random one.
    pub fn generate() -> Self {
        let mut random = UnwrapErr(SysRng);
        let mut text = |len: usize| -> String {
            let letter = |_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]);
            (0..len).map(letter).collect()
        };
        Self { id: text(6), secret: text(16) }
    }

    /// The whole token.
    pub fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// A token with what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    pub token: BootstrapToken,
    /// A text for people.
    pub description: String,
    /// When it ends; never without.
    pub expires: Option<Time>,
    pub usages: Vec<String>,
    /// Groups of who authenticates with it, besides `system:bootstrappers`.
    pub groups: Vec<String>,
}

impl TokenSpec {
    /// Checks usages and groups.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn validate(&self) -> Result<(), BootstrapError> {
        if let Some(usage) = self.usages.iter().find(|usage| !USAGES.contains(&usage.as_str())) {
            return Err(BootstrapError::Invalid(format!(
                "usage {usage:?} of the bootstrap token: must be signing or authentication"
            )));
        }
        let is_group = |group: &&String| group.strip_prefix(GROUP_PREFIX).is_some_and(is_group_end);
        match self.groups.iter().find(|group| !is_group(group)) {
            Some(group) => Err(BootstrapError::Invalid(format!(
                "group {group:?} of the bootstrap token: must be {GROUP_PREFIX} and a name of a-z, 0-9, : and -"
            ))),
            None => Ok(()),
        }
    }

    /// The Secret of type `bootstrap.kubernetes.io/token` that makes it valid.
    pub fn secret(&self, names: &Names) -> Value {
        let mut data = json!({
            "token-id": self.token.id,
            "token-secret": self.token.secret,
        });
        for usage in &self.usages {
            data[format!("usage-bootstrap-{usage}")] = "true".into();
        }
        if !self.groups.is_empty() {
            data["auth-extra-groups"] = self.groups.join(",").into();
        }
        if !self.description.is_empty() {
            data["description"] = self.description.as_str().into();
        }
        if let Some(expires) = self.expires {
            data["expiration"] = expires.to_string().into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": secret_name(&self.token.id), "namespace": names.system_namespace(),
            },
            "type": secret_type(names),
            "stringData": data,
        })
    }
}

fn is_group_end(end: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
    let is_last = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    end.len() <= 255 && end.bytes().all(is_inner) && end.as_bytes().last().is_some_and(is_last)
}

/// Name of a token's Secret.
pub fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Type of tokens' Secrets.
pub fn secret_type(names: &Names) -> String {
    names.sub_label("bootstrap", "token")
}

/// A row of `token list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedToken {
    /// The whole token.
    pub token: String,
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    pub usages: Vec<String>,
    /// A text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    pub groups: Vec<String>,
}

impl ListedToken {
    /// The token of a Secret; none if it is not one.
    pub fn from_secret(secret: &Secret) -> Option<Self> {
        let text = |key: &str| {
            secret.data.get(key).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let token =
            BootstrapToken::parse(&format!("{}.{}", text("token-id")?, text("token-secret")?));
        let is_used =
            |usage: &&str| text(&format!("usage-bootstrap-{usage}")).as_deref() == Some("true");
        let groups = text("auth-extra-groups").unwrap_or_default();
        Some(Self {
            token: token.ok()?.text(),
            expires: text("expiration").filter(|text| !text.is_empty()),
            usages: USAGES.iter().filter(|usage| is_used(usage)).map(|u| (*u).to_owned()).collect(),
            description: text("description").unwrap_or_default(),
            groups: groups.split(',').filter(|g| !g.is_empty()).map(str::to_owned).collect(),
        })
    }
}

/// The command with which a host joins.
pub fn join_command(server: &str, token: &str, pins: &[String]) -> String {
    let server = server.trim_start_matches("https://").trim_end_matches('/');
    let pins: String =
        pins.iter().map(|pin| format!("\\\n\t--discovery-token-ca-cert-hash {pin} ")).collect();
    format!("orchadm join {server} --token {token} {pins}")
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn tokens_are_read_as_kubeadm_writes_them() {
        let token = BootstrapToken::parse("abcdef.0123456789abcdef").unwrap();
        assert_eq!((token.id.as_str(), token.secret.as_str()), ("abcdef", "0123456789abcdef"));
        for bad in ["", "abcdef", "abcdef.", "ABCDEF.0123456789abcdef", "abcde.0123456789abcdef0"] {
            let error = BootstrapToken::parse(bad).unwrap_err().to_string();
            assert!(bad.len() < 7 || !error.contains(bad), "{error}");
        }
        let one = BootstrapToken::generate();
        assert_eq!(BootstrapToken::parse(&one.text()).unwrap(), one);
        assert_ne!(one, BootstrapToken::generate());
        assert!(!format!("{one:?}").contains(&one.secret));
    }

    #[test]
    fn a_token_is_named_whole_or_by_its_id() {
        let id_of = |text: &'static str| BootstrapToken::parse_id(text);
        assert_eq!(id_of("abcdef").unwrap(), "abcdef");
        assert_eq!(id_of("abcdef.0123456789abcdef").unwrap(), "abcdef");
        for bad in ["", "abcde", "abcdef.", "abcdef.0123"] {
            assert!(id_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_says_what_its_token_may_do_and_is_listed_so() {
        let spec = TokenSpec {
            token: BootstrapToken::parse("abcdef.0123456789abcdef").unwrap(),
            description: "one".into(),
            expires: Some(Time::from_unix(1_000)),
            usages: USAGES.map(str::to_owned).to_vec(),
            groups: vec!["system:bootstrappers:a".into()],
        };
        spec.validate().unwrap();
        let secret = spec.secret(Names::new(Profile::Kubernetes));
        assert_eq!(secret["type"], "bootstrap.kubernetes.io/token");
        assert_eq!(secret["metadata"]["name"], "bootstrap-token-abcdef");
        let mut read = Secret::default();
        for (key, value) in secret["stringData"].as_object().unwrap() {
            read.data.insert(key.clone(), value.as_str().unwrap().into());
        }
        let listed = ListedToken::from_secret(&read).unwrap();
        assert_eq!(listed.token, "abcdef.0123456789abcdef");
        assert_eq!(listed.expires.as_deref(), Some("1970-01-01T00:16:40Z"));
        assert_eq!((listed.usages, listed.groups), (spec.usages.clone(), spec.groups.clone()));
        for (usages, groups) in [(vec!["x"], vec![]), (vec![], vec!["system:masters"])] {
            let owned = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect();
            let bad = TokenSpec { usages: owned(usages), groups: owned(groups), ..spec.clone() };
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_join_command_has_kubeadm_s_flags() {
        let pins = ["sha256:00".to_owned()];
        let text = join_command("https://10.0.0.1:6443/", "t", &pins);
        assert_eq!(
            text.replace("\\\n\t", "").trim(),
            "orchadm join 10.0.0.1:6443 --token t --discovery-token-ca-cert-hash sha256:00"
        );
    }
}
