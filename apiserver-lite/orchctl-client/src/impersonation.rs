//! The user to act as: what flags say, and for what they leave open the user's entry of the client configuration.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::{CommandError, UserFlags};

const PREFIX: &str = "impersonate-";

/// The headers that name the user to act as, from flags and the user's entry; none if requests are the user's own.
///
/// # Errors
/// When groups, a UID or extra values come without a user, a field has another type, or a value is not valid in a header.
pub fn headers(flags: &UserFlags, entry: &Value) -> Result<HeaderMap, CommandError> {
    // An empty flag is none, as of a variable that is not set: the entry's user counts.
    let given = |flag: &Option<String>| flag.clone().filter(|value| !value.is_empty());
    let user = given(&flags.impersonate).or(text(entry, "as")?).filter(|user| !user.is_empty());
    let uid = given(&flags.impersonate_uid).or(text(entry, "as-uid")?);
    let groups = match flags.impersonate_groups.as_slice() {
        [] => texts(entry.get("as-groups"), "as-groups")?,
        groups => groups.to_vec(),
    };
    let extra = extra(entry)?;
    let mut headers = HeaderMap::new();
    let Some(user) = user else {
        if !flags.impersonate_groups.is_empty() || flags.impersonate_uid.is_some() {
            return Err(CommandError::with_text(
                "--as-group and --as-uid need --as: requesting groups or uid without impersonating a user",
            ));
        }
        if !groups.is_empty() || uid.is_some() || !extra.is_empty() {
            return Err(CommandError::with_text(
                "the user of the client configuration has as-groups, as-uid or as-user-extra without as: \
                 requesting groups, uid or extra values without impersonating a user",
            ));
        }
        return Ok(headers);
    };
    add(&mut headers, "user", &user)?;
    for group in &groups {
        add(&mut headers, "group", group)?;
    }
    if let Some(uid) = &uid {
        add(&mut headers, "uid", uid)?;
    }
    for (key, value) in &extra {
        add(&mut headers, &format!("extra-{}", escaped(key)), value)?;
    }
    Ok(headers)
}

/// Removes the headers by which a request names a user to act as.
pub fn remove(headers: &mut HeaderMap) {
    let acts = |name: &&HeaderName| name.as_str().starts_with(PREFIX);
    let acting: Vec<HeaderName> = headers.keys().filter(acts).cloned().collect();
    for name in acting {
        headers.remove(name);
    }
}

fn add(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), CommandError> {
    let full = format!("{PREFIX}{name}");
    let invalid =
        || CommandError::with_text(format!("{value:?} is not valid in the header {full}"));
    let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
    let name = HeaderName::from_bytes(full.as_bytes()).map_err(|_| invalid())?;
    headers.append(name, value);
    Ok(())
}

fn wrong(field: &str, what: &str) -> CommandError {
    CommandError::with_text(format!(
        "{field} of the user of the client configuration is not {what}"
    ))
}

fn text(entry: &Value, field: &str) -> Result<Option<String>, CommandError> {
    match entry.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(wrong(field, "a text")),
    }
}

fn texts(list: Option<&Value>, field: &str) -> Result<Vec<String>, CommandError> {
    let list = match list {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(wrong(field, "a list of texts")),
    };
    let read = |one: &Value| one.as_str().map(str::to_owned);
    list.iter().map(read).collect::<Option<_>>().ok_or_else(|| wrong(field, "a list of texts"))
}

/// Keys of `as-user-extra`, each with every one of its values.
fn extra(entry: &Value) -> Result<Vec<(String, String)>, CommandError> {
    let field = "as-user-extra";
    let map = match entry.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(wrong(field, "a map of lists of texts")),
    };
    let mut extra = Vec::new();
    for (key, values) in map {
        let values = texts(Some(values), field)?;
        extra.extend(values.into_iter().map(|value| (key.clone(), value)));
    }
    Ok(extra)
}

/// A key as part of a header's name: what no name may have stands there as `%` and two hexadecimal digits.
fn escaped(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    key.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The headers as `name=value`, in one line.
    fn shown(flags: &UserFlags, entry: &Value) -> Result<String, String> {
        let headers = headers(flags, entry).map_err(|error| error.to_string())?;
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            let name = name.as_str().trim_start_matches(PREFIX);
            format!("{name}={}", String::from_utf8_lossy(value.as_bytes()))
        };
        Ok(headers.iter().map(line).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn flags_count_before_the_users_entry_field_by_field() {
        let entry = json!({"token": "t", "as": "a", "as-uid": "1", "as-groups": ["g", "h"],
            "as-user-extra": {"scopes": ["x", "y"], "example.com/q%": ["z"]}});
        let extra = "extra-scopes=x extra-scopes=y extra-example.com%2fq%25=z";
        let flags = |user: Option<&str>, groups: &[&str], uid: Option<&str>| UserFlags {
            impersonate: user.map(str::to_owned),
            impersonate_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            impersonate_uid: uid.map(str::to_owned),
            ..UserFlags::default()
        };
        for (given, wanted) in [
            (flags(None, &[], None), format!("user=a group=g group=h uid=1 {extra}")),
            (flags(Some("b"), &[], None), format!("user=b group=g group=h uid=1 {extra}")),
            (flags(None, &["i"], Some("2")), format!("user=a group=i uid=2 {extra}")),
        ] {
            assert_eq!(shown(&given, &entry), Ok(wanted));
        }
        assert_eq!(
            shown(&flags(None, &[], None), &json!({"token": "t", "as": ""})),
            Ok(String::new())
        );
        assert_eq!(shown(&flags(Some("b"), &[], None), &Value::Null), Ok("user=b".to_owned()));
    }

    #[test]
    fn what_cannot_be_sent_is_refused_not_dropped() {
        for (entry, why) in [
            (json!({"as-groups": ["g"]}), "without as"),
            (json!({"as-uid": "1"}), "without as"),
            (json!({"as-user-extra": {"a": ["b"]}}), "without as"),
            (json!({"as": 5}), "as of the user of the client configuration is not a text"),
            (json!({"as": "a", "as-groups": "g"}), "as-groups of the user"),
            (json!({"as": "a", "as-user-extra": {"k": "v"}}), "as-user-extra of the user"),
            (json!({"as": "a\nb"}), "is not valid in the header impersonate-user"),
        ] {
            let error = shown(&UserFlags::default(), &entry).expect_err("refused");
            assert!(error.contains(why), "{entry}: {error}");
        }
        let flags = UserFlags { impersonate_uid: Some("1".into()), ..UserFlags::default() };
        assert!(shown(&flags, &Value::Null).expect_err("no user").contains("need --as"));
    }
}
