//! The serviceaccount-token controller: fills token secrets, deletes those of deleted accounts, removes references to deleted secrets, and optionally creates
//! a secret per account.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::ObjectKey;
use proto_api::core::v1::{ObjectReference, Secret, ServiceAccount};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
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

/// A reference of a service account to a token secret of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenReference {
    /// The account that may refer to the secret.
    pub account: ObjectKey,
    /// The uid of the account; empty if the secret does not say.
    pub uid: String,
    /// The name of the secret.
    pub secret: String,
}

impl TokenReference {
    /// The reference that its account may have to a token secret.
    pub fn from_secret(names: &Names, secret: &ObjectMeta) -> Option<Self> {
        let uid = secret.annotations.get(&names.label("service-account.uid"));
        Some(Self {
            account: account_of(names, secret)?,
            uid: uid.cloned().unwrap_or_default(),
            secret: secret.name.clone(),
        })
    }
}

/// Plans the writes for an account and the token secrets that name it. Before they are executed, the account has to be read from the server: the secrets of
/// one that does not exist are deleted, and a cache may only lack it yet.
///
/// # Errors
/// Signing fails.
pub fn plan<E>(
    signer: &TokenSigner<'_, E>,
    account: Option<&ServiceAccount>,
    secrets: &[Arc<Secret>],
) -> Result<Plan, E> {
    let mut writes = Vec::new();
    let is_of = |secret: &Secret| {
        let uid = secret.metadata.annotations.get(&signer.names.label("service-account.uid"));
        let is_own = |uid: &String, of: &ServiceAccount| uid.is_empty() || *uid == of.metadata.uid;
        account.is_some_and(|account| uid.is_none_or(|uid| is_own(uid, account)))
    };
    let (kept, strays): (Vec<_>, Vec<_>) =
        secrets.iter().partition::<Vec<&Arc<Secret>>, _>(|secret| is_of(secret));
    for stray in strays {
        writes.push(ApiWrite::Delete {
            kind: ObjectKind::Secret,
            key: ObjectKey::from_metadata(&stray.metadata),
            uid: stray.metadata.uid.clone(),
            grace_secs: None,
        });
    }
    // The secrets of an account that is being deleted stay until it is gone.
    if let Some(account) = account.filter(|found| found.metadata.deletion_timestamp.is_none()) {
        for secret in &kept {
            writes.extend(signer.fill(account, secret)?);
        }
        writes.extend(signer.generate(account, &kept)?);
    }
    Ok(Plan::from_writes(writes))
}

/// Plans to remove the reference to a token secret that is deleted. The other references stay as they are: they may be to secrets of any type, which pods
/// of the account may mount.
pub fn plan_unreferenced(account: &ServiceAccount, deleted: &TokenReference) -> Plan {
    let is_owner = deleted.uid.is_empty() || deleted.uid == account.metadata.uid;
    if !is_owner || account.secrets.iter().all(|other| other.name != deleted.secret) {
        return Plan::default();
    }
    let mut references = account.secrets.clone();
    references.retain(|other| other.name != deleted.secret);
    Plan::from_writes([set_references(account, &references)])
}

/// Replaces the references of an account that has not changed since it was read.
fn set_references(account: &ServiceAccount, references: &[ObjectReference]) -> ApiWrite {
    let metadata = json!({
        "uid": account.metadata.uid,
        "resourceVersion": account.metadata.resource_version,
    });
    let patch = json!({"metadata": metadata, "secrets": references});
    let key = ObjectKey::from_metadata(&account.metadata);
    ApiWrite::Patch { kind: ObjectKind::ServiceAccount, key, part: Part::Main, patch }
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
        let key = ObjectKey::from_metadata(&secret.metadata);
        Ok(Some(ApiWrite::Patch { kind: ObjectKind::Secret, key, part: Part::Main, patch }))
    }

    /// Creates a secret for an account that refers to none, if secrets are generated.
    fn generate(
        &self,
        account: &ServiceAccount,
        kept: &[&Arc<Secret>],
    ) -> Result<Vec<ApiWrite>, E> {
        let is_there = |name: &str| kept.iter().any(|secret| secret.metadata.name == name);
        let refers = account.secrets.iter().any(|reference| is_there(&reference.name));
        if !self.auto_generates || refers {
            return Ok(Vec::new());
        }
        let (mut writes, own) = (Vec::new(), self.secret_name(account));
        if !is_there(&own) {
            writes.push(ApiWrite::Create(self.secret(account, &own)?.into()));
        }
        if account.secrets.iter().all(|reference| reference.name != own) {
            let mut references = account.secrets.clone();
            references.push(ObjectReference { name: own, ..ObjectReference::default() });
            writes.push(set_references(account, &references));
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
    fn without_automatic_tokens_only_existing_token_secrets_are_filled() {
        assert_eq!(planned_with(false, Some(&account()), &[]), []);
        let (mut asked, _) = made();
        asked.data.clear();
        let writes = planned_with(false, Some(&account()), std::slice::from_ref(&asked));
        assert!(
            matches!(&writes[..], [ApiWrite::Patch { kind: ObjectKind::Secret, .. }]),
            "{writes:?}"
        );
        // A cache that lacks the secret says nothing about the reference to it.
        let (_, referring) = made();
        assert_eq!(planned_with(false, Some(&referring), &[]), []);
    }

    /// A reference to `name` that says more than that.
    fn reference(name: &str) -> ObjectReference {
        let (kind, uid) = ("Secret".to_owned(), format!("uid-{name}"));
        ObjectReference { kind, uid, name: name.into(), ..ObjectReference::default() }
    }

    fn deleted(uid: &str, secret: &str) -> TokenReference {
        let (uid, secret) = (uid.to_owned(), secret.to_owned());
        TokenReference { account: ObjectKey::new("a", "web"), uid, secret }
    }

    /// The name of an Opaque secret may look like that of a token: no list of token secrets has it.
    #[test]
    fn references_stay_until_their_secret_is_deleted() {
        let mut account = account();
        account.metadata.resource_version = "7".into();
        account.secrets = ["web-token-registry", "web-token-x", "other"].map(reference).into();
        for auto_generates in [true, false] {
            for write in planned_with(auto_generates, Some(&account), &[]) {
                let ApiWrite::Patch { patch, .. } = write else { continue };
                let kept = &patch["secrets"].as_array().unwrap()[..3];
                assert_eq!(json!(kept), json!(account.secrets), "whole and in order");
            }
        }
        let Plan { writes, .. } = plan_unreferenced(&account, &deleted("u1", "web-token-x"));
        let [ApiWrite::Patch { kind: ObjectKind::ServiceAccount, key, patch, .. }] = &writes[..]
        else {
            unreachable!("the reference: {writes:?}")
        };
        assert_eq!(*key, ObjectKey::new("a", "web"));
        let kept = ["web-token-registry", "other"].map(reference);
        assert_eq!(patch["secrets"], json!(kept), "one is removed");
        assert_eq!(patch["metadata"], json!({"uid": "u1", "resourceVersion": "7"}));
        assert_eq!(plan_unreferenced(&account, &deleted("", "other")).writes.len(), 1);
        // One of another account of the name, and one that is not referred to.
        assert_eq!(plan_unreferenced(&account, &deleted("u2", "web-token-x")), Plan::default());
        assert_eq!(plan_unreferenced(&account, &deleted("u1", "web-token-y")), Plan::default());
    }

    #[test]
    fn a_deleted_secret_says_which_account_may_refer_to_it() {
        let (mut secret, _) = made();
        let names = Names::new(Profile::Kubernetes);
        let of = |secret: &Secret| TokenReference::from_secret(names, &secret.metadata);
        assert_eq!(of(&secret), Some(deleted("u1", &secret.metadata.name)));
        secret.metadata.annotations.remove("kubernetes.io/service-account.uid");
        assert_eq!(of(&secret), Some(deleted("", &secret.metadata.name)));
        secret.metadata.annotations.clear();
        assert_eq!(of(&secret), None);
    }

    #[test]
    fn token_secrets_are_kept_while_their_account_is_terminating() {
        let (secret, mut account) = made();
        account.metadata.deletion_timestamp = Some(proto_api::Time::from_unix(1));
        assert_eq!(planned(Some(&account), std::slice::from_ref(&secret)), []);
        assert_eq!(planned(Some(&account), &[]), [], "it gets no other");
        let mut unnamed = secret;
        let uid = "kubernetes.io/service-account.uid".to_owned();
        unnamed.metadata.annotations.insert(uid, String::new());
        account.metadata.deletion_timestamp = None;
        assert_eq!(planned(Some(&account), &[unnamed]), [], "an empty uid is none");
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
    fn token_secrets_of_deleted_accounts_are_deleted() {
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
