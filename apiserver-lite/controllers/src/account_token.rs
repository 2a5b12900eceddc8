//! The serviceaccount-token controller: fills token secrets, deletes those of deleted accounts, and optionally creates one per account.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::core::v1::{ObjectReference, Secret, ServiceAccount};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_client::ObjectKey;
use serde_json::{Value, json};

use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// Keys of a token secret.
const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";

/// Signs the token of an account for the secret of this name.
pub type SignToken<'a, E> = dyn Fn(&ServiceAccount, &str) -> Result<String, E> + Sync + 'a;

/// What the tokens in Secrets of service accounts are made from.
pub struct TokenSigner<'a, E> {
    /// The naming profile.
    pub names: &'a Names,
    /// Signs tokens.
    pub sign: &'a SignToken<'a, E>,
    /// CA certificates of the API server, in PEM.
    pub ca: Option<&'a str>,
    /// Whether a secret is created for every account.
    pub auto_generates: bool,
}

/// The type of token secrets.
pub fn secret_type(names: &Names) -> String {
    names.label("service-account-token")
}

/// The account that a token secret names.
pub fn account_of(names: &Names, secret: &ObjectMeta) -> Option<ObjectKey> {
    let name = secret.annotations.get(&names.label("service-account.name"))?;
    Some(ObjectKey::new(&secret.namespace, name))
}

/// Plans the writes for an account and the token secrets that name it.
///
/// # Errors
/// Signing fails.
pub fn plan<E>(
    signer: &TokenSigner<'_, E>,
    account: Option<&ServiceAccount>,
    secrets: &[Arc<Secret>],
) -> Result<Plan, E> {
    let mut writes = Vec::new();
    let account = account.filter(|account| account.metadata.deletion_timestamp.is_none());
    let is_of = |secret: &Secret| {
        let uid = secret.metadata.annotations.get(&signer.names.label("service-account.uid"));
        account.is_some_and(|account| uid.is_none_or(|uid| *uid == account.metadata.uid))
    };
    let (kept, strays): (Vec<_>, Vec<_>) =
        secrets.iter().partition::<Vec<&Arc<Secret>>, _>(|secret| is_of(secret));
    for stray in strays {
        writes.push(ApiWrite::Delete {
            kind: ObjectKind::Secret,
            key: ObjectKey::of(&stray.metadata),
            uid: stray.metadata.uid.clone(),
            grace_secs: None,
        });
    }
    if let Some(account) = account {
        for secret in &kept {
            writes.extend(signer.fill(account, secret)?);
        }
        writes.extend(signer.refer(account, &kept)?);
    }
    Ok(Plan::of(writes))
}

impl<E> TokenSigner<'_, E> {
    /// Adds the missing data of a secret.
    fn fill(&self, account: &ServiceAccount, secret: &Secret) -> Result<Option<ApiWrite>, E> {
        let has = |key: &str| secret.data.contains_key(key);
        let mut data = serde_json::Map::new();
        if !has(TOKEN) {
            let token = (self.sign)(account, &secret.metadata.name)?;
            data.insert(TOKEN.into(), base64(token.as_bytes()));
        }
        if let Some(ca) = self.ca
            && !has(CA)
        {
            data.insert(CA.into(), base64(ca.as_bytes()));
        }
        if !has(NAMESPACE) {
            data.insert(NAMESPACE.into(), base64(secret.metadata.namespace.as_bytes()));
        }
        if data.is_empty() {
            return Ok(None);
        }
        let uid = self.names.label("service-account.uid");
        let patch = json!({
            "metadata": {
                "uid": secret.metadata.uid,
                "resourceVersion": secret.metadata.resource_version,
                "annotations": {uid: account.metadata.uid},
            },
            "data": data,
        });
        let key = ObjectKey::of(&secret.metadata);
        Ok(Some(ApiWrite::Patch { kind: ObjectKind::Secret, key, part: Part::Main, patch }))
    }

    /// Removes references to deleted secrets. Creates a secret for an account that refers to none, if secrets are generated.
    fn refer(&self, account: &ServiceAccount, kept: &[&Arc<Secret>]) -> Result<Vec<ApiWrite>, E> {
        let (mut writes, own) = (Vec::new(), self.secret_name(account));
        let is_there = |name: &str| kept.iter().any(|secret| secret.metadata.name == name);
        let made_by_us = format!("{}-token-", account.metadata.name);
        let mut references = account.secrets.clone();
        // Other references are to secrets that pods of the account may mount.
        references.retain(|r| is_there(&r.name) || !r.name.starts_with(&made_by_us));
        let refers = references.iter().any(|reference| is_there(&reference.name));
        if self.auto_generates && !refers {
            if !is_there(&own) {
                writes.push(ApiWrite::Create(self.secret(account, &own)?.into()));
            }
            references.push(ObjectReference { name: own, ..ObjectReference::default() });
        }
        if references != account.secrets {
            let named: Vec<Value> = references.iter().map(|r| json!({"name": r.name})).collect();
            let version = &account.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "secrets": named});
            let key = ObjectKey::of(&account.metadata);
            let (kind, part) = (ObjectKind::ServiceAccount, Part::Main);
            writes.push(ApiWrite::Patch { kind, key, part, patch });
        }
        Ok(writes)
    }

    /// Deterministic, so that a secret created before a crash is found after it.
    fn secret_name(&self, account: &ServiceAccount) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut hash = std::hash::DefaultHasher::new();
        hash.write(account.metadata.uid.as_bytes());
        let mut rest = hash.finish();
        let mut name = format!("{}-token-", account.metadata.name);
        for _ in 0..5 {
            let count = LETTERS.len() as u64;
            let nth = rest.checked_rem(count).and_then(|nth| usize::try_from(nth).ok());
            let letter = nth.and_then(|nth| LETTERS.get(nth));
            name.push(char::from(letter.copied().unwrap_or(b'x')));
            rest = rest.checked_div(count).unwrap_or(0);
        }
        name
    }

    fn secret(&self, account: &ServiceAccount, name: &str) -> Result<Secret, E> {
        let token = (self.sign)(account, name)?;
        let mut data = BTreeMap::from([
            (TOKEN.to_owned(), token.into_bytes()),
            (NAMESPACE.to_owned(), account.metadata.namespace.clone().into_bytes()),
        ]);
        if let Some(ca) = self.ca {
            data.insert(CA.to_owned(), ca.as_bytes().to_vec());
        }
        let annotations = BTreeMap::from([
            (self.names.label("service-account.name"), account.metadata.name.clone()),
            (self.names.label("service-account.uid"), account.metadata.uid.clone()),
        ]);
        let metadata = ObjectMeta {
            name: name.to_owned(),
            namespace: account.metadata.namespace.clone(),
            annotations,
            ..ObjectMeta::default()
        };
        Ok(Secret { metadata, data, type_: secret_type(self.names), ..Secret::default() })
    }
}

fn base64(bytes: &[u8]) -> Value {
    Value::String(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;
    use crate::api_writes::WrittenObject;

    fn account() -> ServiceAccount {
        let mut account = ServiceAccount::default();
        account.metadata.name = "web".into();
        account.metadata.namespace = "a".into();
        account.metadata.uid = "u1".into();
        account
    }

    fn planned(account: Option<&ServiceAccount>, secrets: &[Secret]) -> Vec<ApiWrite> {
        planned_with(true, account, secrets)
    }

    fn planned_with(
        auto_generates: bool,
        account: Option<&ServiceAccount>,
        secrets: &[Secret],
    ) -> Vec<ApiWrite> {
        let sign = |account: &ServiceAccount, secret: &str| {
            Ok::<_, std::fmt::Error>(format!("{} {secret}", account.metadata.uid))
        };
        let names = Names::new(Profile::Kubernetes);
        let signer = TokenSigner { names, sign: &sign, ca: Some("pem"), auto_generates };
        let secrets: Vec<_> = secrets.iter().cloned().map(Arc::new).collect();
        plan(&signer, account, &secrets).unwrap().writes
    }

    /// The secret and the reference that a new account gets.
    fn made() -> (Secret, ServiceAccount) {
        let writes = planned(Some(&account()), &[]);
        let [ApiWrite::Create(WrittenObject::Secret(secret)), ApiWrite::Patch { patch, .. }] =
            &writes[..]
        else {
            unreachable!("a secret and a reference: {writes:?}")
        };
        let mut account = account();
        let name = patch["secrets"][0]["name"].as_str().unwrap().to_owned();
        account.secrets.push(ObjectReference { name, ..ObjectReference::default() });
        (*secret.clone(), account)
    }

    #[test]
    fn an_account_gets_one_secret_and_keeps_it() {
        let (secret, account) = made();
        assert_eq!(secret.metadata.name, account.secrets[0].name);
        assert_eq!(secret.type_, "kubernetes.io/service-account-token");
        assert_eq!(secret.data["ca.crt"], b"pem");
        assert_eq!(secret.data["namespace"], b"a");
        assert_eq!(secret.data["token"], format!("u1 {}", secret.metadata.name).into_bytes());
        assert_eq!(planned(Some(&account), std::slice::from_ref(&secret)), []);
    }

    #[test]
    fn unasked_nothing_is_made_but_what_was_asked_for_is_filled() {
        assert_eq!(planned_with(false, Some(&account()), &[]), []);
        let (mut asked, _) = made();
        asked.data.clear();
        let writes = planned_with(false, Some(&account()), std::slice::from_ref(&asked));
        assert!(
            matches!(&writes[..], [ApiWrite::Patch { kind: ObjectKind::Secret, .. }]),
            "{writes:?}"
        );
        // The reference to a deleted secret is removed, and no secret is created.
        let (_, referring) = made();
        let writes = planned_with(false, Some(&referring), &[]);
        let [ApiWrite::Patch { kind: ObjectKind::ServiceAccount, patch, .. }] = &writes[..] else {
            unreachable!("the reference: {writes:?}")
        };
        assert_eq!(patch["secrets"], json!([]));
    }

    #[test]
    fn a_secret_made_before_a_crash_is_found_again() {
        let (secret, _) = made();
        let writes = planned(Some(&account()), std::slice::from_ref(&secret));
        let [ApiWrite::Patch { kind: ObjectKind::ServiceAccount, patch, .. }] = &writes[..] else {
            unreachable!("only the reference: {writes:?}")
        };
        assert_eq!(patch["secrets"], json!([{"name": secret.metadata.name}]));
    }

    #[test]
    fn empty_secrets_are_filled_and_others_references_kept() {
        let (whole, mut account) = made();
        account.secrets.push(ObjectReference { name: "mine".into(), ..Default::default() });
        let mut empty = whole.clone();
        empty.metadata.name = "extra".into();
        empty.metadata.annotations.remove("kubernetes.io/service-account.uid");
        empty.data.clear();
        let writes = planned(Some(&account), &[whole, empty]);
        let [ApiWrite::Patch { kind: ObjectKind::Secret, key, patch, .. }] = &writes[..] else {
            unreachable!("one patch: {writes:?}")
        };
        assert_eq!(key.name, "extra");
        assert_eq!(patch["data"]["namespace"], "YQ==");
        assert_eq!(patch["metadata"]["annotations"]["kubernetes.io/service-account.uid"], "u1");
    }

    #[test]
    fn secrets_of_accounts_that_are_gone_go() {
        let (secret, account) = made();
        let deletes = |writes: Vec<ApiWrite>| matches!(&writes[..], [ApiWrite::Delete { .. }]);
        assert!(deletes(planned(None, std::slice::from_ref(&secret))));
        let mut other = account;
        other.metadata.uid = "u2".into();
        let writes = planned(Some(&other), &[secret]);
        assert!(matches!(writes.first(), Some(ApiWrite::Delete { .. })), "{writes:?}");
        assert!(
            writes.iter().any(|w| matches!(w, ApiWrite::Create(WrittenObject::Secret(s))
                if s.metadata.annotations["kubernetes.io/service-account.uid"] == "u2")),
            "{writes:?}"
        );
    }
}
