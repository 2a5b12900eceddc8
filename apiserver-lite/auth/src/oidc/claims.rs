//! pure: the claims of an ID token, and the user that they name.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::{OidcError, OidcSettings};
use crate::user::User;

/// Tolerated difference of clocks for `nbf`, in seconds.
const NOT_BEFORE_SKEW: f64 = 60.0;
/// The claim that needs no prefix, and may have to be verified.
const EMAIL: &str = "email";
/// Most groups of a user.
const GROUPS_MAX: usize = 10_000;

/// The issuer that a token names; nothing else in it can be trusted yet.
#[must_use]
pub fn unverified_issuer(token: &str) -> Option<String> {
    if token.len() > apiserver_token::jwt::TOKEN_LEN_MAX {
        return None;
    }
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(&claims).ok()?;
    claims.get("iss")?.as_str().map(str::to_owned)
}

/// The user that verified claims name at the Unix time `now`.
///
/// # Errors
/// A claim is missing or has a wrong value.
pub fn user(
    settings: &OidcSettings,
    claims: &Map<String, Value>,
    now: i64,
) -> Result<User, OidcError> {
    check_audience(settings, claims)?;
    check_times(claims, now)?;
    for (claim, wanted) in &settings.required_claims {
        if text(claims, claim)? != *wanted {
            return Err(OidcError::Claim(format!("claim {claim:?} has not the required value")));
        }
    }
    let claim = settings.username_claim.as_str();
    let name = text(claims, claim)?;
    // A provider that lets users choose their address states in `email_verified` whether it has checked it.
    if claim == EMAIL && claims.get("email_verified").is_some_and(|v| v != &Value::Bool(true)) {
        return Err(OidcError::Claim("the email address is not verified".to_owned()));
    }
    if name.is_empty() {
        return Err(OidcError::Claim(format!("claim {claim:?} is empty")));
    }
    let prefix = match settings.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(prefix) if !prefix.is_empty() => prefix.to_owned(),
        _ if claim == EMAIL => String::new(),
        _ => format!("{}#", settings.issuer_url),
    };
    let groups = groups(settings, claims)?;
    Ok(User { name: format!("{prefix}{name}"), groups, ..User::default() }.authenticated())
}

fn check_audience(settings: &OidcSettings, claims: &Map<String, Value>) -> Result<(), OidcError> {
    let meant = match claims.get("aud") {
        Some(Value::String(one)) => *one == settings.client_id,
        Some(Value::Array(all)) => all.iter().any(|one| one == settings.client_id.as_str()),
        _ => false,
    };
    match meant {
        true => Ok(()),
        false => Err(OidcError::Claim("the token is issued for another client".to_owned())),
    }
}

/// Times are seconds since 1970, possibly with a fraction (RFC 7519, section 2).
fn check_times(claims: &Map<String, Value>, now: i64) -> Result<(), OidcError> {
    #[expect(clippy::cast_precision_loss, reason = "seconds fit until the year 285 million")]
    let now = now as f64;
    let fail = |text: &str| Err(OidcError::Claim(text.to_owned()));
    match claims.get("exp").and_then(Value::as_f64) {
        None => return fail("claim \"exp\" is missing or not a number"),
        Some(expires) if expires <= now => return fail("the token has expired"),
        Some(_) => {}
    }
    match claims.get("nbf").filter(|from| !from.is_null()).map(Value::as_f64) {
        None => Ok(()),
        Some(Some(from)) if from <= now + NOT_BEFORE_SKEW => Ok(()),
        Some(_) => fail("the token is not valid yet"),
    }
}

fn groups(settings: &OidcSettings, claims: &Map<String, Value>) -> Result<Vec<String>, OidcError> {
    let Some(claim) = &settings.groups_claim else { return Ok(Vec::new()) };
    let wrong =
        || OidcError::Claim(format!("claim {claim:?} is neither a text nor a list of texts"));
    let named: Vec<&str> = match claims.get(claim) {
        None if is_distributed(claims, claim) => return Err(distributed(claim)),
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) if all.len() <= GROUPS_MAX => {
            all.iter().map(|one| one.as_str().ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    Ok(named.iter().map(|group| format!("{}{group}", settings.groups_prefix)).collect())
}

/// Whether the claim is an aggregated or distributed one (OpenID Connect Core 1.0, section 5.6.2), which is not fetched: the token is refused, since
/// without the claim the user would lack its groups.
fn is_distributed(claims: &Map<String, Value>, claim: &str) -> bool {
    claims.get("_claim_names").is_some_and(|names| names.get(claim).is_some())
}

fn distributed(claim: &str) -> OidcError {
    OidcError::Claim(format!(
        "claim {claim:?} is not in the token but in another source (_claim_names): distributed and aggregated claims are not supported, expected a provider that issues the claim itself"
    ))
}

fn text<'a>(claims: &'a Map<String, Value>, claim: &str) -> Result<&'a str, OidcError> {
    if !claims.contains_key(claim) && is_distributed(claims, claim) {
        return Err(distributed(claim));
    }
    let value = claims.get(claim).and_then(Value::as_str);
    value.ok_or_else(|| OidcError::Claim(format!("claim {claim:?} is missing or not a string")))
}
