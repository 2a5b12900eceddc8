//! Token secrets of service accounts. Accounts and secrets come to the caches by watches of their own, and one may lag behind the other: before anything is
//! written or deleted, the account is read from the server.

use std::sync::Arc;

use apiserver_controllers::Plan;
use apiserver_controllers::account_token::{self, TokenReference, TokenSigner};
use apiserver_token::{LegacyToken, jwt};
use proto_api::ObjectKey;
use proto_api::core::v1::{Secret, ServiceAccount};
use proto_api::dns_names::is_subdomain;
use proto_client::{Client, ClientError};

use super::{ReconcileError, Reconciler};

impl Reconciler {
    /// Plans the token secrets of an account.
    pub(super) async fn plan_tokens(
        &self,
        client: &Client,
        account: &ObjectKey,
    ) -> Result<Plan, ReconcileError> {
        let informers = &self.informers;
        if informers.is_terminating(&account.namespace) {
            return Ok(Plan::default());
        }
        let mut secrets = informers.token_secrets.within(&account.namespace);
        secrets.retain(|secret| {
            let of = account_token::account_of(informers.names, &secret.metadata);
            of.as_ref() == Some(account)
        });
        let cached = informers.service_accounts.get(account);
        let plan = self.plan_tokens_of(cached.as_deref(), &secrets)?;
        if plan.writes.is_empty() {
            return Ok(plan);
        }
        let found = find_account(client, account).await?;
        self.plan_tokens_of(found.as_ref(), &secrets)
    }

    /// Plans nothing without a signing key.
    fn plan_tokens_of(
        &self,
        account: Option<&ServiceAccount>,
        secrets: &[Arc<Secret>],
    ) -> Result<Plan, ReconcileError> {
        let names = self.informers.names;
        let Some(key) = &self.settings.token_key else { return Ok(Plan::default()) };
        let sign = |account: &ServiceAccount, secret: &str| {
            let token = LegacyToken {
                namespace: account.metadata.namespace.clone(),
                secret: secret.to_owned(),
                account: account.metadata.name.clone(),
                account_uid: account.metadata.uid.clone(),
            };
            jwt::sign(&token.claims(names), key)
        };
        let signer = TokenSigner {
            names,
            sign: &sign,
            ca: self.settings.root_ca.as_deref(),
            auto_generates: self.settings.auto_generates_tokens,
        };
        Ok(account_token::plan(&signer, account, secrets)?)
    }

    /// Plans to remove the reference of an account to a deleted token secret, unless a secret has its name again.
    pub(super) async fn plan_token_reference(
        &self,
        client: &Client,
        reference: &TokenReference,
    ) -> Result<Plan, ReconcileError> {
        let TokenReference { account, secret, .. } = reference;
        if self.settings.token_key.is_none() || self.informers.is_terminating(&account.namespace) {
            return Ok(Plan::default());
        }
        let Some(found) = find_account(client, account).await? else { return Ok(Plan::default()) };
        let plan = account_token::plan_unreferenced(&found, reference);
        let secrets = client.within::<Secret>(&account.namespace);
        if plan.writes.is_empty() || secrets.find(secret).await?.is_some() {
            return Ok(Plan::default());
        }
        Ok(plan)
    }
}

/// The account that the server has. A secret may name one that cannot exist; a request for it would be refused each time.
async fn find_account(
    client: &Client,
    account: &ObjectKey,
) -> Result<Option<ServiceAccount>, ClientError> {
    if !is_subdomain(&account.name) {
        return Ok(None);
    }
    client.within::<ServiceAccount>(&account.namespace).find(&account.name).await
}
