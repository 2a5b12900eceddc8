//! Who may do what at an HTTPS server. First who: a client certificate, a bearer token that the API server vouches for, or
//! nobody in particular; then what: everything, or what the API server allows. Answers of the API server are remembered
//! for a while.

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

/// How clients are recognised and who says what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRules {
    /// Whether unknown clients are let in as `system:anonymous`.
    pub anonymous: Anonymous,
    /// Who says whose a bearer token is.
    pub tokens: Tokens,
    /// Who says what is allowed.
    pub authorization: Authorization,
}

/// What a client wants to do. Answers are remembered by it, so it is small.
pub trait Question: Clone + Ord + Send {
    /// The attributes of the review; the user is filled in.
    fn attributes(&self) -> SubjectAccessReviewSpec;
    /// What a client is told that may not.
    fn denial(&self, user: &str) -> String;
}

/// Whether unknown clients are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// As `system:anonymous`.
    Allowed,
    /// They get 401.
    Refused,
}

/// Who says whose a bearer token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// The API server, by token review; its answer is remembered that long.
    Reviewed(Duration),
    /// Nobody: tokens are not looked at.
    Ignored,
}

/// Who says what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Nobody: all is.
    AlwaysAllow,
    /// The API server, by subject access review.
    Webhook {
        /// A yes is remembered that long.
        allowed_for: Duration,
        /// A no is remembered that long.
        denied_for: Duration,
    },
}

impl Authorization {
    /// The webhook with Kubernetes' times: 5 minutes and 30 seconds.
    pub const WEBHOOK: Self = Self::Webhook {
        allowed_for: Duration::from_secs(300),
        denied_for: Duration::from_secs(30),
    };
}

impl Tokens {
    /// Reviewed, remembered for Kubernetes' 2 minutes.
    pub const REVIEWED: Self = Self::Reviewed(Duration::from_secs(120));
}

/// The API server's two questions.
pub trait Reviews: Send + Sync {
    /// Whose is this token?
    fn token<'a>(&'a self, token: &'a str)
    -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>>;
    /// May this be done?
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

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody knows who asks (401).
    #[error("Unauthorized")]
    Unknown,
    /// It is known, and may not (403).
    #[error("{0}")]
    Forbidden(String),
    /// The API server could not be asked (500).
    #[error("{0}")]
    CannotTell(String),
}

/// SHA-256 of what is asked about: of a token, or of all that an authorizer may look at of a user. Nothing secret is kept, and
/// long ones take no more room.
type Key = [u8; 32];

/// A token that the API server does not know is not asked about again for this long: it may come to be known.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);
/// Tokens that the API server is asked about at a time. More wait: made-up ones must not become its load.
const REVIEWS_MAX: usize = 8;
/// Longest wait for that.
const REVIEW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest token that is asked about.
const TOKEN_LEN_MAX: usize = 16 << 10;

/// Decides on requests, each a question of type `Q`.
pub struct Access<Q> {
    rules: AccessRules,
    reviews: Box<dyn Reviews>,
    tokens: Mutex<TtlCache<Key, UserInfo>>,
    /// Tokens that are nobody's: apart, as there may be any number of them.
    unknown: Mutex<TtlCache<Key, ()>>,
    asking: Semaphore,
    decisions: Mutex<TtlCache<(Key, Q), bool>>,
}

impl<Q: Question> Access<Q> {
    /// By these rules.
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

    /// Whether a client may. `certified` is what its certificate proves, `authorization` the header of that name.
    ///
    /// # Errors
    /// Why not.
    pub async fn check(
        &self,
        certified: &Certified,
        authorization: Option<&str>,
        question: &Q,
    ) -> Result<(), Refused> {
        let user = self.authenticate(certified, authorization).await?;
        self.authorize(&user, question).await
    }

    /// Whether a request with this header that was let in had a token that the API server knows.
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
            // A wrong token is refused and not taken for none.
            return self.review_token(token, time).await;
        }
        match self.rules.anonymous {
            // A certificate that is not valid is refused as well, and not taken for none.
            _ if certified.is_some() => Err(Refused::Unknown),
            Anonymous::Refused => Err(Refused::Unknown),
            Anonymous::Allowed => Ok(UserInfo {
                username: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
                ..UserInfo::default()
            }),
        }
    }

    async fn review_token(&self, token: &str, remember: Duration) -> Result<UserInfo, Refused> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(Refused::Unknown);
        }
        let key = key(token.as_bytes());
        if let Some(known) = self.known(&key) {
            return known;
        }
        let Ok(Ok(_place)) = timeout(REVIEW_WAIT_MAX, self.asking.acquire()).await else {
            return Err(Refused::CannotTell("too many token reviews".to_owned()));
        };
        // Another request with the same token may have been answered meanwhile.
        if let Some(known) = self.known(&key) {
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

    /// What is remembered of a token.
    fn known(&self, key: &Key) -> Option<Result<UserInfo, Refused>> {
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

/// The review of what `user` wants.
fn about(user: &UserInfo, attributes: SubjectAccessReviewSpec) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
        ..attributes
    }
}

/// Everybody who was recognised is in this group.
fn authenticated(mut user: UserInfo) -> UserInfo {
    const GROUP: &str = "system:authenticated";
    if !user.groups.iter().any(|group| group == GROUP) {
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
    tracing::warn!(error = cause, "{what} failed");
    Refused::CannotTell(format!("{what} failed"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
