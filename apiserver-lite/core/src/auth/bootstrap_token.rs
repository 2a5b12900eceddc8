//! Bootstrap tokens, with which a node requests its first certificate: `<id>.<secret>`, stored in Secrets of the system
//! namespace. A token is valid as long as its Secret exists, until its `expiration`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::Time;
use proto_api::names::Names;
use ring::digest::{SHA256, digest};

use super::ObjectLookup;
use crate::record::StoredObject;
use crate::times::now;
use apiserver_auth::User;

const ID_LEN: usize = 6;
const SECRET_LEN: usize = 16;
/// Group of all bootstrap tokens, and prefix of their further groups.
const GROUP: &str = "system:bootstrappers";

/// The user of a bootstrap token, if it is valid now.
pub fn user_of(objects: &dyn ObjectLookup, token: &str) -> Option<User> {
    let (id, secret) = parts(token)?;
    let namespace = objects.names().system_namespace();
    let record = objects.find_in("", "secrets", namespace, &format!("bootstrap-token-{id}"))?;
    let found = TokenSecret::from_secret(&record, objects.names());
    found.user(id, secret, now().unix_timestamp())
}

/// Id and secret of a token; `None` for tokens of another form.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let fits = id.len() == ID_LEN && secret.len() == SECRET_LEN && plain(id) && plain(secret);
    fits.then_some((id, secret))
}

/// The content of a bootstrap token Secret.
#[derive(Debug, Default)]
struct TokenSecret {
    type_matches: bool,
    deleted: bool,
    id: String,
    secret: String,
    authenticates: String,
    expiration: String,
    groups: String,
}

impl TokenSecret {
    fn from_secret(record: &StoredObject, names: &Names) -> Self {
        let object = record.object();
        let data = |key: &str| {
            let encoded = object.fields.str_at(&["data", key]);
            STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        };
        let text = |key: &str| data(key).unwrap_or_default();
        Self {
            type_matches: object.fields.str("type") == names.sub_label("bootstrap", "token"),
            deleted: object.deletion_timestamp().is_some(),
            id: text("token-id"),
            secret: text("token-secret"),
            authenticates: text("usage-bootstrap-authentication"),
            expiration: text("expiration"),
            groups: text("auth-extra-groups"),
        }
    }

    fn user(&self, id: &str, secret: &str, now_unix: i64) -> Option<User> {
        let valid = self.type_matches
            && !self.deleted
            && self.id == id
            && is_same_secret(&self.secret, secret)
            && self.authenticates == "true"
            && self.is_unexpired(now_unix);
        if !valid {
            return None;
        }
        let extra = self.groups.split(',').map(str::trim).filter(|group| !group.is_empty());
        let extra: Vec<String> = extra.map(str::to_owned).collect();
        // One invalid group invalidates the token.
        if !extra.iter().all(|group| is_group(group)) {
            return None;
        }
        let mut groups = vec![GROUP.to_owned()];
        groups.extend(extra);
        let name = format!("system:bootstrap:{id}");
        Some(User { name, groups, ..User::default() }.authenticated())
    }

    fn is_unexpired(&self, now_unix: i64) -> bool {
        match self.expiration.as_str() {
            "" => true,
            text => {
                let end = text.parse::<Time>().ok().and_then(|time| time.unix());
                end.is_some_and(|end| now_unix < end)
            }
        }
    }
}

/// `system:bootstrappers:` and a name.
fn is_group(group: &str) -> bool {
    let Some(name) = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else {
        return false;
    };
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 256
        && name.bytes().all(|b| letter(b) || matches!(b, b':' | b'-'))
        && name.bytes().last().is_some_and(letter)
}

/// Compares digests, so that the time of it says nothing of how much of a guess is right.
fn is_same_secret(a: &str, b: &str) -> bool {
    let digest = |text: &str| digest(&SHA256, text.as_bytes());
    digest(a).as_ref() == digest(b).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> TokenSecret {
        TokenSecret {
            type_matches: true,
            id: "abcdef".into(),
            secret: "0123456789abcdef".into(),
            authenticates: "true".into(),
            groups: "system:bootstrappers:workers, system:bootstrappers:zone-1".into(),
            ..TokenSecret::default()
        }
    }

    #[test]
    fn a_token_has_two_parts() {
        assert_eq!(parts("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for token in ["", "abcdef", "abcde.0123456789abcdef", "Abcdef.0123456789abcdef", "a.b.c"] {
            assert_eq!(parts(token), None, "{token}");
        }
    }

    #[test]
    fn a_good_token_is_a_bootstrapper() {
        let user = found().user("abcdef", "0123456789abcdef", 0).expect("good");
        assert_eq!(user.name, "system:bootstrap:abcdef");
        let groups = [
            "system:bootstrappers",
            "system:bootstrappers:workers",
            "system:bootstrappers:zone-1",
            "system:authenticated",
        ];
        assert_eq!(user.groups, groups);
        let ends = TokenSecret { expiration: "1970-01-01T00:01:40Z".into(), ..found() };
        assert!(ends.user("abcdef", "0123456789abcdef", 99).is_some());
    }

    #[test]
    fn secrets_are_the_same_as_a_whole_only() {
        assert!(is_same_secret("0123456789abcdef", "0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "1123456789abcdef"] {
            assert!(!is_same_secret("0123456789abcdef", other), "{other:?}");
        }
    }

    #[test]
    fn nothing_less_counts() {
        let ends = |text: &str| TokenSecret { expiration: text.into(), ..found() };
        let groups = |text: &str| TokenSecret { groups: text.into(), ..found() };
        for (what, found) in [
            ("type", TokenSecret { type_matches: false, ..found() }),
            ("deleted", TokenSecret { deleted: true, ..found() }),
            ("id", TokenSecret { id: "x".into(), ..found() }),
            ("secret", TokenSecret { secret: "0123456789abcdee".into(), ..found() }),
            ("usage", TokenSecret { authenticates: String::new(), ..found() }),
            ("expired", ends("1970-01-01T00:01:40Z")),
            ("no time", ends("tomorrow")),
            ("a group of others", groups("system:masters")),
            ("no name", groups("system:bootstrappers:")),
            ("a bad end", groups("system:bootstrappers:a-")),
        ] {
            assert_eq!(found.user("abcdef", "0123456789abcdef", 100), None, "{what}");
        }
    }
}
