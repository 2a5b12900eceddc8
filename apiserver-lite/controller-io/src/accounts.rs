//! The service accounts that the controllers write as (`--use-service-account-credentials`). Each gets a token that is bound to nothing else, is renewed
//! before it expires, and at once when the server refuses it. What is read into the caches is read with the program's own identity.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::authentication::v1::{TokenRequest, TokenRequestSpec};
use proto_api::core::v1::ServiceAccount;
use proto_api::meta::v1::ObjectMeta;
use proto_client::transport::ClientTlsError;
use proto_client::{Client, ClientError, SharedToken, WriteParams};
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::drain::DrainWatch;
use tokio::sync::watch;

/// Lifetime of a token.
const EXPIRATION: Duration = Duration::from_secs(3600);
/// Part of its lifetime after which a token is renewed.
const RENEW_AT: f64 = 0.8;
/// How long the controllers wait for the first tokens of all.
const FIRST_TOKENS_WAIT: Duration = Duration::from_secs(10);
/// Between two tokens of one account, however often the server refuses them.
const RENEW_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// The service account of a controller, as in Kubernetes; none for the one that serves accounts before they have tokens. The bootstrap roles
/// (`apiserver-rbac`) say what each may do.
pub fn account_of(controller: &str) -> Option<&'static str> {
    Some(match controller {
        "attachdetach" => "attachdetach-controller",
        "bootstrapsigner" => "bootstrap-signer",
        "clusterrole-aggregation" => "clusterrole-aggregation-controller",
        "cronjob" => "cronjob-controller",
        "csrapproving" | "csrcleaner" | "csrsigning" => "certificate-controller",
        "daemonset" => "daemon-set-controller",
        "deployment" => "deployment-controller",
        "disruption" => "disruption-controller",
        "endpoint" => "endpoint-controller",
        "endpointslice" => "endpointslice-controller",
        "endpointslicemirroring" => "endpointslicemirroring-controller",
        "ephemeral-volume" => "ephemeral-volume-controller",
        "garbagecollector" => "generic-garbage-collector",
        "horizontalpodautoscaling" => "horizontal-pod-autoscaler",
        "job" => "job-controller",
        "namespace" => "namespace-controller",
        "nodeipam" | "nodelifecycle" => "node-controller",
        "persistentvolume-binder" => "persistent-volume-binder",
        "persistentvolume-expander" => "expand-controller",
        "podgc" => "pod-garbage-collector",
        "pv-protection" => "pv-protection-controller",
        "pvc-protection" => "pvc-protection-controller",
        "replicaset" => "replicaset-controller",
        "replicationcontroller" => "replication-controller",
        "resourcequota" => "resourcequota-controller",
        "root-ca-cert-publisher" => "root-ca-cert-publisher",
        "service" => "service-controller",
        "serviceaccount" => "service-account-controller",
        "statefulset" => "statefulset-controller",
        "tokencleaner" => "token-cleaner",
        "ttl-after-finished" => "ttl-after-finished-controller",
        _ => return None,
    })
}

/// The identities of the controllers.
#[derive(Clone)]
pub struct Accounts {
    own: Client,
    by_account: BTreeMap<&'static str, Client>,
}

impl Accounts {
    /// With `separate` each of the `enabled` controllers uses its service account, and its requests fail until its first [`TokenRenewal`] is done; else
    /// the program's own identity.
    pub fn new<'a>(
        own: Client,
        separate: bool,
        enabled: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Self, Vec<TokenRenewal>), ClientTlsError> {
        if !separate {
            return Ok((Self { own, by_account: BTreeMap::new() }, Vec::new()));
        }
        // One connection for all, without the certificate: it would be the identity of every request.
        let anonymous = own.anonymous()?;
        let (mut by_account, mut renewals) = (BTreeMap::new(), Vec::new());
        for account in enabled.into_iter().filter_map(account_of) {
            by_account.entry(account).or_insert_with(|| {
                let token = SharedToken::default();
                renewals.push(TokenRenewal { account, own: own.clone(), token: token.clone() });
                anonymous.with_token(token)
            });
        }
        Ok((Self { own, by_account }, renewals))
    }

    /// The program's own identity, which may list all that the caches have.
    pub fn own(&self) -> &Client {
        &self.own
    }

    /// The identity of a controller, by its name in `--controllers`.
    pub fn of_controller(&self, controller: &str) -> &Client {
        account_of(controller).and_then(|account| self.by_account.get(account)).unwrap_or(&self.own)
    }
}

/// Issues the tokens of one account.
pub struct TokenRenewal {
    account: &'static str,
    own: Client,
    token: SharedToken,
}

impl TokenRenewal {
    /// Runs until drained. Counts in `issued` when the account has its first token.
    async fn run(self, issued: watch::Sender<usize>, drain: DrainWatch) {
        let (mut retries, mut first) = (Retries::new(Backoff::LOOP), true);
        loop {
            let wait = match self.issue().await {
                Ok(lifetime) => {
                    retries.reset();
                    if std::mem::take(&mut first) {
                        issued.send_modify(|count| *count = count.saturating_add(1));
                    }
                    renewal_after(lifetime)
                }
                Err(error) => {
                    let wait = retries.next_delay(rand::random());
                    tracing::warn!(
                        account = self.account,
                        error = proto_daemon::exit::chain(&error),
                        ?wait,
                        "cannot request a token for a controller's service account; retried"
                    );
                    wait
                }
            };
            let pause = wait.min(RENEW_INTERVAL_MIN);
            tokio::select! {
                () = drain.asked() => return,
                () = tokio::time::sleep(pause) => {}
            }
            tokio::select! {
                () = drain.asked() => return,
                () = self.token.refused() => {
                    tracing::info!(account = self.account, "the API server rejected the token of a controller's service account; a new one is requested");
                }
                () = tokio::time::sleep(wait.saturating_sub(pause)) => {}
            }
        }
    }

    /// Issues a token and uses it. Gives its lifetime.
    async fn issue(&self) -> Result<Duration, ClientError> {
        let api = self.own.within::<ServiceAccount>(self.own.names().system_namespace());
        let seconds = i64::try_from(EXPIRATION.as_secs()).unwrap_or(i64::MAX);
        let spec =
            TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let issued: TokenRequest = match api.create_sub(self.account, "token", &request).await {
            Err(error) if error.is_not_found() => {
                let metadata =
                    ObjectMeta { name: self.account.to_owned(), ..ObjectMeta::default() };
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                match api.create(&account, &WriteParams::default()).await {
                    Ok(_) => {}
                    Err(error) if error.is_already_exists() => {}
                    Err(error) => return Err(error),
                }
                api.create_sub(self.account, "token", &request).await?
            }
            other => other?,
        };
        if !self.token.set(&issued.status.token) {
            tracing::warn!(
                account = self.account,
                "the token of a controller's service account is not a valid header value; requests of the controller fail"
            );
        }
        let seconds = issued.spec.expiration_seconds.unwrap_or(seconds);
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}

/// Starts the renewals. Returns when each account has a token, at the latest after [`FIRST_TOKENS_WAIT`]: an account that gets none does not keep the
/// other controllers from working.
pub async fn run_renewals(renewals: Vec<TokenRenewal>, drain: &DrainWatch) {
    let (issued, mut count) = watch::channel(0);
    let wanted = renewals.len();
    for renewal in renewals {
        tokio::spawn(renewal.run(issued.clone(), drain.clone()));
    }
    tokio::select! {
        () = drain.asked() => {}
        () = tokio::time::sleep(FIRST_TOKENS_WAIT) => {
            tracing::warn!("some controllers have no service account token yet; their requests fail until the API server issues one");
        }
        _ = count.wait_for(|count| *count == wanted) => {}
    }
}

fn renewal_after(lifetime: Duration) -> Duration {
    lifetime.mul_f64(RENEW_AT).max(RENEW_INTERVAL_MIN)
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};
    use proto_client::ClientConfig;
    use proto_client::config::{Credential, TlsSettings};

    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_expire_and_not_all_the_time() {
        let after = |seconds| renewal_after(Duration::from_secs(seconds)).as_secs();
        assert_eq!([3600, 600, 0].map(after), [2880, 480, 5]);
    }

    #[test]
    fn controllers_share_the_accounts_that_they_share_in_kubernetes() {
        let config = ClientConfig {
            server: "http://127.0.0.1:1".parse().expect("address"),
            tls: TlsSettings::default(),
            credential: Credential::None,
            namespace: String::new(),
        };
        let own = Client::new(&config, Names::new(Profile::Kubernetes), "test").expect("client");
        let shared =
            ["nodeipam", "csrsigning", "nodelifecycle", "csrcleaner", "serviceaccount-token"];
        let (_, renewals) = Accounts::new(own.clone(), true, shared).expect("a client");
        let accounts: Vec<&str> = renewals.iter().map(|renewal| renewal.account).collect();
        assert_eq!(accounts, ["node-controller", "certificate-controller"]);
        let (accounts, renewals) = Accounts::new(own, true, ["endpoint"]).expect("a client");
        assert_eq!((accounts.by_account.len(), renewals.len()), (1, 1));
    }
}
