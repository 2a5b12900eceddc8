//! Authentication and authorization of an HTTPS server. Clients authenticate by a certificate, by a bearer token that the API server reviews, or are
//! anonymous; they may do everything, or what the API server's subject access reviews allow. Reviews are cached.

mod ttl_cache;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use proto_api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use proto_api::authorization::v1::{
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use ring::digest::{SHA256, digest};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::tls::Certified;
use crate::{Client, ClientError, WriteParams};
use ttl_cache::TtlCache;

/// How clients are authenticated and authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRules {
    /// Whether unauthenticated clients are `system:anonymous`.
    pub anonymous: Anonymous,
    /// How bearer tokens are authenticated.
    pub tokens: Tokens,
    /// How requests are authorized.
    pub authorization: Authorization,
}

/// The attributes of a request. They are the key of cached reviews, so they are small.
pub trait Question: Clone + Ord + Send {
    /// The attributes of the review, for this user.
    fn attributes(&self) -> SubjectAccessReviewSpec;
    /// The message for a client that is not allowed.
    fn denial(&self, user: &str) -> String;
}

/// How unauthenticated clients are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// As `system:anonymous`.
    Allowed,
    /// They get 401.
    Refused,
}

/// How bearer tokens are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// By token reviews of the API server, which are cached for that long.
    Reviewed(Duration),
    /// Tokens are ignored.
    Ignored,
}

/// How requests are authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Everything is allowed.
    AlwaysAllow,
    /// By subject access reviews of the API server.
    Webhook {
        /// How long an allowing review is cached.
        allowed_for: Duration,
        /// How long a denying review is cached.
        denied_for: Duration,
    },
}

impl Authorization {
    /// The webhook with Kubernetes' cache times: 5 minutes and 30 seconds.
    pub const WEBHOOK: Self = Self::Webhook {
        allowed_for: Duration::from_secs(300),
        denied_for: Duration::from_secs(30),
    };
}

impl Tokens {
    /// Reviewed, cached for Kubernetes' 2 minutes.
    pub const REVIEWED: Self = Self::Reviewed(Duration::from_secs(120));
}

/// The two reviews of the API server.
pub trait Reviews: Send + Sync {
    /// Reviews a token.
    fn token<'a>(&'a self, token: &'a str)
    -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>>;
    /// Reviews access.
    fn access<'a>(
        &'a self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>>;
}

impl Reviews for Client {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>> {
        Box::pin(async move {
            let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
            let review = TokenReview { spec, ..TokenReview::default() };
            let answer = self.all::<TokenReview>().create(&review, &WriteParams::default()).await?;
            Ok(answer.status)
        })
    }

    fn access<'a>(
        &'a self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>> {
        Box::pin(async move {
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let answer =
                self.all::<SubjectAccessReview>().create(&review, &WriteParams::default()).await?;
            Ok(answer.status)
        })
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The client is not authenticated (401).
    #[error("Unauthorized")]
    Unknown,
    /// The client is not allowed (403).
    #[error("{0}")]
    Forbidden(String),
    /// The review failed (500).
    #[error("{0}")]
    CannotTell(String),
}

/// Name of the anonymous user, and its group.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// SHA-256 of a token, or of the attributes of a user that an authorizer may use: no secret is kept, and every key has the same size.
type Key = [u8; 32];

/// How long the refusal of a token is cached: the token may become valid.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// Most token reviews at a time; further ones wait. Invalid tokens must not become load of the API server.
const REVIEWS_MAX: usize = 8;
/// Longest wait for a review.
const REVIEW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest token that is reviewed.
const TOKEN_LEN_MAX: usize = 16 << 10;

/// Authenticates clients and authorizes their requests; `Q` has the attributes of a request.
pub struct Access<Q> {
    rules: AccessRules,
    reviews: Box<dyn Reviews>,
    tokens: Mutex<TtlCache<Key, UserInfo>>,
    /// Refused tokens: separate, since there may be any number of them.
    unknown: Mutex<TtlCache<Key, ()>>,
    asking: Semaphore,
    decisions: Mutex<TtlCache<(Key, Q), bool>>,
}

impl<Q: Question> Access<Q> {
    /// With this configuration.
    #[must_use]
    pub fn new(rules: AccessRules, reviews: Box<dyn Reviews>) -> Self {
        Self {
            rules,
            reviews,
            tokens: Mutex::default(),
            unknown: Mutex::default(),
            asking: Semaphore::new(REVIEWS_MAX),
            decisions: Mutex::default(),
        }
    }

    /// Authorizes a request. `certified` is the user of the client certificate, `authorization` the header of that name.
    ///
    /// # Errors
    /// The request is refused.
    pub async fn check(
        &self,
        certified: &Certified,
        authorization: Option<&str>,
        question: &Q,
    ) -> Result<(), Refused> {
        let user = self.authenticate(certified, authorization).await?;
        self.authorize(&user, question).await
    }

    /// Whether an accepted request with this header had a valid token.
    #[must_use]
    pub fn knows_by_token(&self, authorization: Option<&str>) -> bool {
        self.rules.tokens != Tokens::Ignored && authorization.and_then(bearer).is_some()
    }

    async fn authenticate(
        &self,
        certified: &Certified,
        authorization: Option<&str>,
    ) -> Result<UserInfo, Refused> {
        if let Some(Ok(user)) = certified {
            return Ok(authenticated(user.clone()));
        }
        if let (Tokens::Reviewed(time), Some(token)) =
            (self.rules.tokens, authorization.and_then(bearer))
        {
            // An invalid token is refused; the client does not become anonymous.
            return self.review_token(token, time).await;
        }
        match self.rules.anonymous {
            // The same for an invalid certificate.
            _ if certified.is_some() => Err(Refused::Unknown),
            Anonymous::Refused => Err(Refused::Unknown),
            Anonymous::Allowed => Ok(UserInfo {
                username: ANONYMOUS.to_owned(),
                groups: vec![UNAUTHENTICATED.to_owned()],
                ..UserInfo::default()
            }),
        }
    }

    async fn review_token(&self, token: &str, remember: Duration) -> Result<UserInfo, Refused> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(Refused::Unknown);
        }
        let key = key(token.as_bytes());
        if let Some(known) = self.cached_review(&key) {
            return known;
        }
        let Ok(Ok(_place)) = timeout(REVIEW_WAIT_MAX, self.asking.acquire()).await else {
            return Err(Refused::CannotTell("too many token reviews".to_owned()));
        };
        // Another request with the same token may have been reviewed meanwhile.
        if let Some(known) = self.cached_review(&key) {
            return known;
        }
        let status =
            self.reviews.token(token).await.map_err(|error| cannot_tell("token review", &error))?;
        let now = Instant::now();
        if !status.authenticated {
            lock(&self.unknown).put(key, (), now + UNKNOWN_FOR);
            return Err(Refused::Unknown);
        }
        let user = authenticated(status.user);
        lock(&self.tokens).put(key, user.clone(), now + remember);
        Ok(user)
    }

    /// The cached review of a token.
    fn cached_review(&self, key: &Key) -> Option<Result<UserInfo, Refused>> {
        let now = Instant::now();
        let user = lock(&self.tokens).get(key, now).map(Ok);
        user.or_else(|| lock(&self.unknown).get(key, now).map(|()| Err(Refused::Unknown)))
    }

    async fn authorize(&self, user: &UserInfo, question: &Q) -> Result<(), Refused> {
        let Authorization::Webhook { allowed_for, denied_for } = self.rules.authorization else {
            return Ok(());
        };
        // Name, uid, groups and extra, each quoted.
        let key = (key(format!("{user:?}").as_bytes()), question.clone());
        let known = lock(&self.decisions).get(&key, Instant::now());
        let allowed = match known {
            Some(allowed) => allowed,
            None => {
                let asked = self.reviews.access(about(user, question.attributes())).await;
                let status = asked.map_err(|error| cannot_tell("subject access review", &error))?;
                let allowed = status.allowed && !status.denied;
                let until = Instant::now() + if allowed { allowed_for } else { denied_for };
                lock(&self.decisions).put(key, allowed, until);
                allowed
            }
        };
        if allowed {
            return Ok(());
        }
        Err(Refused::Forbidden(question.denial(&user.username)))
    }
}

/// The access review for a request of `user`.
fn about(user: &UserInfo, attributes: SubjectAccessReviewSpec) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
        ..attributes
    }
}

/// Adds the group of all authenticated users, unless the user is an anonymous one.
fn authenticated(mut user: UserInfo) -> UserInfo {
    const GROUP: &str = "system:authenticated";
    let is_in = |wanted: &str| user.groups.iter().any(|group| group == wanted);
    if user.username != ANONYMOUS && !is_in(UNAUTHENTICATED) && !is_in(GROUP) {
        user.groups.push(GROUP.to_owned());
    }
    user
}

fn key(bytes: &[u8]) -> Key {
    let mut key = Key::default();
    key.copy_from_slice(digest(&SHA256, bytes).as_ref());
    key
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

fn cannot_tell(what: &str, error: &ClientError) -> Refused {
    let cause = proto_daemon::exit::chain(error);
    tracing::warn!(error = cause, "{what} failed; the request is rejected");
    Refused::CannotTell(format!("{what} failed"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
