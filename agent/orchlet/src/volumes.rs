//! Volumes of pods: joins the volume crate, which blocks, with the objects and tokens that volumes are filled from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_csi::offload;
use agent_pod::volume_mounts::VolumeOnHost;
use agent_volume::persistent::Backing;
use agent_volume::pod_volumes::SetUp;
use agent_volume::sources::{HostPathKind, Inputs, TokenWant, VolumeKind};
use agent_volume::sub_path::SubPath;
use agent_volume::token::Life;
use agent_volume::tree::Written;
use agent_volume::{Needs, Volume};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::authentication::v1::{BoundObjectReference, TokenRequest};
use proto_api::core::v1::{Node, Pod, ServiceAccount};
use proto_api::{Quantity, Time};
use proto_client::Client;
use proto_daemon::exit::chain;
use tokio::sync::watch;

use crate::clock;
use crate::csi::{self, NodePersistent, REPUBLISH_PERIOD};
use crate::pods::seams::{Line, MountedVolumes, PodVolumes, Sources, VolumeFill, WantedPart};

/// A token is renewed after this share of its life, in percent, or after [`TOKEN_AGE_MAX`].
const TOKEN_LIFE_PERCENT: u32 = 80;
/// A token older than this is renewed however long it lives.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long a reader that has opened the generation before a switch is given to finish.
const SWEEP_AFTER: Duration = Duration::from_secs(2);

/// Volumes on this node.
pub struct NodeVolumes {
    volumes: agent_volume::PodVolumes,
    persistent: NodePersistent,
    client: Option<Client>,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// Tokens in use, by uid of their pod.
    tokens: Mutex<BTreeMap<String, BTreeMap<TokenWant, Token>>>,
    /// Persistent volumes in use, by uid of their pod and name of what is behind them: the volume's name in the pod, and its claim.
    in_pods: Mutex<BTreeMap<String, InPod>>,
}

type InPod = BTreeMap<String, (String, Option<String>)>;

/// A token in use.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    /// When it expires, RFC 3339.
    expires: String,
    /// When it is renewed, since boot.
    renew_at: Duration,
}

impl NodeVolumes {
    /// Volumes of the pods; without a client there are no tokens.
    pub fn new(
        volumes: agent_volume::PodVolumes,
        persistent: NodePersistent,
        client: Option<Client>,
        node: watch::Receiver<Option<Arc<Node>>>,
    ) -> Self {
        Self {
            volumes,
            persistent,
            client,
            node,
            tokens: Mutex::default(),
            in_pods: Mutex::default(),
        }
    }

    async fn set_up_all(&self, pod: &Arc<Pod>, sources: &Sources) -> Result<MountedVolumes, Line> {
        let volumes = agent_volume::volumes(pod).map_err(|e| e.to_string())?;
        if volumes.is_empty() {
            return Ok(MountedVolumes::default());
        }
        let persistent = self.persistent.of(pod, &sources.persistent)?;
        let mut needs = Needs::default();
        volumes.iter().for_each(|volume| volume.add_needs(&mut needs));
        let driven = persistent.iter().filter_map(|volume| match &volume.backing {
            Backing::Csi(csi) => Some(csi),
            _ => None,
        });
        driven.clone().for_each(|csi| needs.tokens.extend(csi.tokens.iter().cloned()));
        let republish = driven.clone().any(|csi| csi.republish);
        let tokens = self.tokens(pod, &volumes, &needs.tokens).await?;
        let again = republish.then(|| clock::boot() + REPUBLISH_PERIOD);
        let refresh_at = tokens.values().map(|token| token.renew_at).chain(again).min();
        let mut on_host = BTreeMap::new();
        if !persistent.is_empty() {
            let tokens = for_drivers(&tokens);
            for volume in &persistent {
                let done =
                    self.persistent.set_up(pod, volume, &sources.persistent, &tokens).await?;
                on_host.insert(volume.name.clone(), done);
            }
            let names = persistent.iter().map(|volume| {
                (volume.spec_name.clone(), (volume.name.clone(), volume.claim.clone()))
            });
            self.in_pods().insert(pod.metadata.uid.clone(), names.collect());
        }
        let tokens = tokens.into_iter().map(|(want, token)| (want, token.text)).collect();
        let allocatable = self.node.borrow().as_ref().map(|n| n.status.allocatable.clone());
        let work = Work {
            pod: pod.clone(),
            volumes,
            sources: sources.clone(),
            tokens,
            allocatable: allocatable.unwrap_or_default(),
        };
        let on_disk = self.volumes.clone();
        let done = offload(move || work.set_up(&on_disk)).await;
        let done = done.map_err(|e| format!("setting volumes up broke off: {e}"))??;
        self.sweep_later(pod, done.switched);
        on_host.extend(done.on_host);
        Ok(MountedVolumes { on_host, refresh_at })
    }

    /// The tokens that a pod's volumes hold; asks for those that are missing or old. A token that cannot be renewed is used on:
    /// it is still good for a fifth of its life.
    async fn tokens(
        &self,
        pod: &Pod,
        volumes: &[Volume],
        wants: &BTreeSet<TokenWant>,
    ) -> Result<BTreeMap<TokenWant, Token>, Line> {
        if wants.is_empty() {
            return Ok(BTreeMap::new());
        }
        let uid = &pod.metadata.uid;
        let known = self.all_tokens().get(uid).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.held(uid, volumes).await,
        };
        known.retain(|want, _| wants.contains(want));
        for want in wants {
            let now = clock::boot();
            if known.get(want).is_some_and(|token| now < token.renew_at) {
                continue;
            }
            match (self.request(pod, want).await, known.get_mut(want)) {
                (Ok(token), _) => {
                    known.insert(want.clone(), token);
                }
                (Err(line), Some(old)) => {
                    tracing::warn!(pod = pod.metadata.name, error = line, "token is not renewed");
                    old.renew_at = now + Duration::from_secs(10);
                }
                (Err(line), None) => return Err(line),
            }
        }
        if !known.is_empty() {
            self.all_tokens().insert(uid.clone(), known.clone());
        }
        Ok(known)
    }

    /// The tokens that a pod held before this process started and that are still good.
    async fn held(&self, uid: &str, volumes: &[Volume]) -> BTreeMap<TokenWant, Token> {
        let (on_disk, of, volumes) = (self.volumes.clone(), uid.to_owned(), volumes.to_vec());
        let found = offload(move || on_disk.tokens(&of, &volumes)).await;
        let now = clock::now();
        let good = found.unwrap_or_default().into_iter().filter_map(|(want, text)| {
            let life = Life::of(&text).filter(|life| life.expires_at > now.unix_seconds)?;
            let renew_at = now.boot + life.renew_in(now.unix_seconds);
            let expires = Time::from_unix(life.expires_at).to_string();
            Some((want, Token { text, expires, renew_at }))
        });
        good.collect()
    }

    async fn request(&self, pod: &Pod, want: &TokenWant) -> Result<Token, Line> {
        let client = self.client.as_ref().ok_or("no API server to ask for a token")?;
        let mut request = TokenRequest::default();
        if !want.audience.is_empty() {
            request.spec.audiences.push(want.audience.clone());
        }
        request.spec.expiration_seconds = Some(want.expiration_secs);
        request.spec.bound_object_ref = Some(BoundObjectReference {
            kind: "Pod".to_owned(),
            api_version: "v1".to_owned(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        });
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let asked = clock::now();
        let api = client.within::<ServiceAccount>(&pod.metadata.namespace);
        let answer: TokenRequest = api
            .create_sub(account, "token", &request)
            .await
            .map_err(|e| format!("ask for a token of {account}: {}", chain(&e)))?;
        // The life that the server gave by its own clock, counted from now by a clock that nobody sets.
        let expires = answer.status.expiration_timestamp.unix();
        let life = expires.map(|at| at.saturating_sub(asked.unix_seconds));
        let life = life.filter(|secs| *secs > 0).unwrap_or(want.expiration_secs);
        let life = Duration::from_secs(u64::try_from(life).unwrap_or(0));
        let renew_at = asked.boot + (life * TOKEN_LIFE_PERCENT / 100).min(TOKEN_AGE_MAX);
        let expires = answer.status.expiration_timestamp.to_string();
        Ok(Token { text: answer.status.token, expires, renew_at })
    }

    fn all_tokens(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeMap<TokenWant, Token>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_pods(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, InPod>> {
        self.in_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn filled(&self, pod: &Pod) -> Vec<VolumeFill> {
        let uid = &pod.metadata.uid;
        let Some(names) = self.in_pods().get(uid).cloned() else { return Vec::new() };
        let amount = |(all, used, left): (i64, i64, i64)| {
            let at_least_none = |n: i64| u64::try_from(n).unwrap_or(0);
            (at_least_none(all), at_least_none(used), at_least_none(left))
        };
        let told = self.persistent.csi.fill(uid).await.into_iter();
        let known = told.filter_map(|fill| {
            let (name, claim) = names.get(&fill.spec_name)?.clone();
            let inodes = fill.inodes.map(amount).unwrap_or_default();
            Some(VolumeFill { name, claim, bytes: amount(fill.bytes?), inodes })
        });
        known.collect()
    }

    /// Removes replaced generations a little later, for readers that still read them.
    fn sweep_later(&self, pod: &Pod, switched: Vec<Volume>) {
        if switched.is_empty() {
            return;
        }
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        tokio::spawn(async move {
            tokio::time::sleep(SWEEP_AFTER).await;
            let swept = offload(move || {
                for volume in &switched {
                    if let Err(error) = on_disk.sweep(&uid, volume) {
                        tracing::debug!(uid, error = chain(&error), "volume is not swept");
                    }
                }
            });
            if let Err(error) = swept.await {
                tracing::error!(%error, "sweeping volumes broke off");
            }
        });
    }
}

/// Tokens as drivers are given them.
fn for_drivers(tokens: &BTreeMap<TokenWant, Token>) -> csi::Tokens {
    let each = |(want, token): (&TokenWant, &Token)| {
        let (text, expires) = (token.text.clone(), token.expires.clone());
        let audience = want.audience.clone();
        (want.clone(), agent_csi::request::Token { audience, text, expires })
    };
    tokens.iter().map(each).collect()
}

/// Everything that setting the volumes of a pod up needs, on its way to a thread that may block.
struct Work {
    pod: Arc<Pod>,
    volumes: Vec<Volume>,
    sources: Sources,
    tokens: BTreeMap<TokenWant, String>,
    allocatable: BTreeMap<String, Quantity>,
}

struct Done {
    on_host: BTreeMap<String, VolumeOnHost>,
    switched: Vec<Volume>,
}

impl Work {
    fn set_up(self, on_disk: &agent_volume::PodVolumes) -> Result<Done, Line> {
        let inputs = Inputs {
            pod: &self.pod,
            objects: &self.sources,
            tokens: &self.tokens,
            allocatable: &self.allocatable,
        };
        let mut done = Done { on_host: BTreeMap::new(), switched: Vec::new() };
        let persistent = |volume: &Volume| volume.kind == VolumeKind::Persistent;
        for volume in self.volumes.into_iter().filter(|volume| !persistent(volume)) {
            let SetUp { path, written, .. } =
                on_disk.set_up(&inputs, &volume).map_err(|e| chain(&e))?;
            let here = VolumeOnHost {
                path: path.to_string_lossy().into_owned(),
                read_only: matches!(volume.kind, VolumeKind::Projected(_)),
                managed: !matches!(volume.kind, VolumeKind::HostPath { .. }),
                block: false,
                checked: match &volume.kind {
                    VolumeKind::HostPath { path, kind } => {
                        *kind != HostPathKind::Unset && !on_disk.lie_below(path)
                    }
                    _ => false,
                },
            };
            done.on_host.insert(volume.name.clone(), here);
            if written == Some(Written::Switched) {
                done.switched.push(volume);
            }
        }
        Ok(done)
    }
}

impl PodVolumes for NodeVolumes {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a Sources,
    ) -> BoxFuture<'a, Result<MountedVolumes, Line>> {
        self.set_up_all(pod, sources).boxed()
    }

    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, Line>> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let container = container.to_owned();
        let volumes = agent_volume::volumes(pod).unwrap_or_default();
        let on_node = move |name: &str| {
            volumes.iter().find(|volume| volume.name == name).and_then(|volume| match volume.kind {
                VolumeKind::HostPath { kind, .. } => Some(kind),
                _ => None,
            })
        };
        async move {
            let bind = move || {
                let mut bound = BTreeMap::new();
                for part in &parts {
                    let wanted = SubPath {
                        volume: &part.name,
                        root: Path::new(&part.volume.path),
                        container: &container,
                        index: part.index,
                        path: &part.path,
                        on_node: on_node(&part.name),
                        all_read_only: part.all_read_only,
                    };
                    let at = on_disk.sub_path(&uid, &wanted).map_err(|e| chain(&e))?;
                    bound.insert(part.index, at.to_string_lossy().into_owned());
                }
                Ok(bound)
            };
            let done = offload(bind).await;
            done.map_err(|e| format!("binding parts of volumes broke off: {e}"))?
        }
        .boxed()
    }

    fn fill<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Vec<VolumeFill>> {
        self.filled(pod).boxed()
    }

    fn in_use(&self) -> Vec<String> {
        self.persistent.csi.in_use()
    }

    fn exist(&self, pod: &Pod) -> bool {
        let uid = &pod.metadata.uid;
        self.volumes.exist(uid) || self.persistent.csi.has(uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        async move {
            self.all_tokens().remove(&uid);
            self.in_pods().remove(&uid);
            let (parts, of) = (on_disk.clone(), uid.clone());
            let freed = offload(move || parts.tear_down_parts(&of)).await;
            freed
                .map_err(|e| format!("taking volumes down broke off: {e}"))?
                .map_err(|e| chain(&e))?;
            self.persistent.csi.tear_down(&uid).await.map_err(|e| e.to_string())?;
            let done = offload(move || on_disk.tear_down(&uid)).await;
            done.map_err(|e| format!("taking volumes down broke off: {e}"))?.map_err(|e| chain(&e))
        }
        .boxed()
    }
}
