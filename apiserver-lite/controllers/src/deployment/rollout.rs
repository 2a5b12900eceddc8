//! The sizes of a deployment's replica sets in a rollout: never more pods than `maxSurge` allows, never fewer available than `maxUnavailable`
//! allows.

use proto_api::IntOrString;
use proto_api::apps::v1::{Deployment, ReplicaSet};

use super::size_annotations::SizeAnnotations;

/// A replica set and its next size; the same one where only its annotations change.
pub struct SetScale<'a> {
    pub set: &'a ReplicaSet,
    pub replicas: i64,
}

/// The sums of the sizes of all sets, in 64 bits so that they are exact.
pub struct Sizes {
    new: i64,
    old: i64,
    new_available: i64,
    old_available: i64,
    old_pods: i64,
}

impl Sizes {
    /// Sums the sizes.
    pub fn from_sets(newest: Option<&ReplicaSet>, old: &[&ReplicaSet]) -> Self {
        Self {
            new: newest.map_or(0, size),
            old: sum(old.iter().map(|set| size(set))),
            new_available: newest.map_or(0, available),
            old_available: sum(old.iter().map(|set| available(set))),
            old_pods: sum(old.iter().map(|set| i64::from(set.status.replicas.max(0)))),
        }
    }

    /// The number of pods that all sets request.
    pub fn total(&self) -> i64 {
        self.new.saturating_add(self.old)
    }
}

/// Sums counts with saturation.
pub fn sum(counts: impl Iterator<Item = i64>) -> i64 {
    counts.fold(0, i64::saturating_add)
}

/// The replicas of the deployment, at least 0: stored objects may not be valid.
pub fn replicas(deployment: &Deployment) -> i64 {
    i64::from(deployment.spec.replicas.unwrap_or(1).max(0))
}

/// The replicas of the set, at least 0.
pub fn size(set: &ReplicaSet) -> i64 {
    i64::from(set.spec.replicas.unwrap_or(1).max(0))
}

/// The pods of the set that stay available: its status counts pods, too, that it is about to delete. Before it has seen the present size nothing is known of
/// them: a set that grows again may have just deleted those that its status counts.
fn available(set: &ReplicaSet) -> i64 {
    let has_seen_size = set.status.observed_generation >= set.metadata.generation;
    if has_seen_size { reported_available(set) } else { 0 }
}

/// The same by the last status, which may be that of an earlier size.
fn reported_available(set: &ReplicaSet) -> i64 {
    i64::from(set.status.available_replicas.max(0)).min(size(set))
}

/// Converts a count to the type of API fields.
pub fn clamp_to_i32(count: i64) -> i32 {
    i32::try_from(count.max(0)).unwrap_or(i32::MAX)
}

/// Whether the strategy is Recreate.
pub fn recreates(deployment: &Deployment) -> bool {
    deployment.spec.strategy.type_ == "Recreate"
}

/// The number of pods that a rollout may create above the replicas.
pub fn max_surge(deployment: &Deployment) -> i64 {
    if recreates(deployment) {
        return 0;
    }
    let rolling = deployment.spec.strategy.rolling_update.as_ref();
    match rolling.and_then(|rolling| rolling.max_surge.as_ref()) {
        Some(surge) => share(surge, replicas(deployment), Round::Up),
        None => share(&IntOrString::from("25%"), replicas(deployment), Round::Up),
    }
}

/// The number of pods below the replicas that may be unavailable.
pub fn max_unavailable(deployment: &Deployment) -> i64 {
    if recreates(deployment) {
        return 0;
    }
    let wanted = replicas(deployment);
    let rolling = deployment.spec.strategy.rolling_update.as_ref();
    let unavailable = match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(unavailable) => share(unavailable, wanted, Round::Down),
        None => share(&IntOrString::from("25%"), wanted, Round::Down),
    };
    // With both 0 a rollout would not progress.
    let stuck = unavailable == 0 && max_surge(deployment) == 0;
    let unavailable = if stuck { 1 } else { unavailable };
    unavailable.min(wanted)
}

#[derive(Clone, Copy)]
enum Round {
    Up,
    Down,
}

/// A number or a percentage of `whole`, bounded to 0 and the maximum of an API field.
fn share(value: &IntOrString, whole: i64, round: Round) -> i64 {
    let percent = match value {
        IntOrString::Int(number) => return i64::from((*number).max(0)),
        IntOrString::String(text) => {
            text.strip_suffix('%').and_then(|text| text.parse::<i64>().ok())
        }
    };
    let part = whole.saturating_mul(percent.unwrap_or(0).max(0));
    let part = match round {
        Round::Up => part.saturating_add(99).div_euclid(100),
        Round::Down => part.div_euclid(100),
    };
    part.min(i64::from(i32::MAX))
}

/// Whether old sets have pods, including terminating ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPods {
    /// They have none.
    Gone,
    /// Some may be running.
    Left,
}

/// The initial size of the newest set; none while it has to wait for old pods to end.
pub fn first_size(deployment: &Deployment, sizes: &Sizes, old_pods: OldPods) -> Option<i64> {
    if recreates(deployment) {
        let gone = sizes.old == 0 && sizes.old_pods == 0 && old_pods == OldPods::Gone;
        return gone.then(|| replicas(deployment));
    }
    Some(scaled_up(deployment, sizes))
}

/// The largest size of the newest set with the current sizes of the others.
fn scaled_up(deployment: &Deployment, sizes: &Sizes) -> i64 {
    let wanted = replicas(deployment);
    let maximum = wanted.saturating_add(max_surge(deployment));
    let room = maximum.saturating_sub(sizes.total()).max(0);
    wanted.min(sizes.new.saturating_add(room))
}

/// Whether the deployment's replicas have changed and its sets have not followed yet.
pub fn is_scaled(
    deployment: &Deployment,
    annotations: &SizeAnnotations,
    newest: Option<&ReplicaSet>,
    old: &[&ReplicaSet],
) -> bool {
    let mut sets = old.iter().copied().chain(newest);
    !recreates(deployment) && sets.any(|set| annotations.replicas_changed(set))
}

/// The next sizes: the newest set is scaled up first, then the old ones down. A deployment whose replicas have changed in a rollout is scaled first.
pub fn steps<'a>(
    deployment: &Deployment,
    annotations: &SizeAnnotations,
    newest: Option<&'a ReplicaSet>,
    old: &[&'a ReplicaSet],
    old_pods: OldPods,
) -> Vec<SetScale<'a>> {
    let sizes = Sizes::from_sets(newest, old);
    let wanted = replicas(deployment);
    if deployment.spec.paused {
        let waits = recreates(deployment) && old_pods == OldPods::Left;
        return if waits { Vec::new() } else { resize(deployment, annotations, newest, old) };
    }
    if is_scaled(deployment, annotations, newest, old) {
        return resize(deployment, annotations, newest, old);
    }
    let Some(newest) = newest else {
        let all_to_zero = recreates(deployment);
        let running = old.iter().filter(|set| size(set) > 0 && all_to_zero);
        return running.map(|set| SetScale { set, replicas: 0 }).collect();
    };
    if sizes.new > wanted {
        return vec![SetScale { set: newest, replicas: wanted }];
    }
    if recreates(deployment) {
        let running: Vec<SetScale<'a>> = old
            .iter()
            .filter(|set| size(set) > 0)
            .map(|set| SetScale { set, replicas: 0 })
            .collect();
        let gone = running.is_empty() && sizes.old_pods == 0 && old_pods == OldPods::Gone;
        if gone && sizes.new < wanted {
            return vec![SetScale { set: newest, replicas: wanted }];
        }
        return running;
    }
    let grown = scaled_up(deployment, &sizes);
    if grown > sizes.new {
        return vec![SetScale { set: newest, replicas: grown }];
    }
    scale_down(deployment, &sizes, old)
}

/// Scales the old sets down: unavailable pods first, then as many available ones as the strategy allows.
fn scale_down<'a>(
    deployment: &Deployment,
    sizes: &Sizes,
    old: &[&'a ReplicaSet],
) -> Vec<SetScale<'a>> {
    let min_available = replicas(deployment).saturating_sub(max_unavailable(deployment));
    let new_missing = sizes.new.saturating_sub(sizes.new_available);
    let mut broken_room =
        sizes.total().saturating_sub(min_available).saturating_sub(new_missing).max(0);
    let running = sizes.new_available.saturating_add(sizes.old_available);
    let mut room = running.saturating_sub(min_available).max(0);
    let mut steps = Vec::new();
    for set in old.iter().copied().filter(|set| size(set) > 0) {
        let broken = size(set).saturating_sub(reported_available(set)).clamp(0, broken_room);
        broken_room = broken_room.saturating_sub(broken);
        let working = size(set).saturating_sub(broken).min(room).min(broken_room);
        room = room.saturating_sub(working);
        broken_room = broken_room.saturating_sub(working);
        let fewer = broken.saturating_add(working);
        if fewer > 0 {
            steps.push(SetScale { set, replicas: size(set).saturating_sub(fewer) });
        }
    }
    steps
}

/// Scales a deployment without rolling it out: the only set with pods, or the newest without, gets the size; several share it.
fn resize<'a>(
    deployment: &Deployment,
    annotations: &SizeAnnotations,
    newest: Option<&'a ReplicaSet>,
    old: &[&'a ReplicaSet],
) -> Vec<SetScale<'a>> {
    let wanted = replicas(deployment);
    let sets = || old.iter().copied().chain(newest);
    let mut with_pods = sets().filter(|set| size(set) > 0);
    let only = match (with_pods.next(), with_pods.next()) {
        (Some(only), None) => Some(only),
        (None, _) => sets().last(),
        (Some(_), Some(_)) if recreates(deployment) => None,
        // The newest set is complete: the others are not needed.
        (Some(_), Some(_))
            if newest.is_some_and(|n| size(n) == wanted && available(n) == wanted) =>
        {
            let running = old.iter().copied().filter(|set| size(set) > 0);
            return running.map(|set| SetScale { set, replicas: 0 }).collect();
        }
        (Some(_), Some(_)) => {
            let sets = sets().filter(|set| size(set) > 0).collect();
            return scale_proportionally(deployment, annotations, sets);
        }
    };
    let scale = only.map(|set| SetScale { set, replicas: wanted });
    scale.filter(|scale| is_change(scale, annotations)).into_iter().collect()
}

/// Whether the set gets another size, or is marked as scaled for other replicas of the deployment.
fn is_change(scale: &SetScale<'_>, annotations: &SizeAnnotations) -> bool {
    scale.replicas != size(scale.set) || annotations.replicas_changed(scale.set)
}

/// Proportional scaling: each set keeps its share of the pods that all could have when it was last scaled, the larger sets first, as far as there are pods
/// to add or to remove; the first one gets what is left.
fn scale_proportionally<'a>(
    deployment: &Deployment,
    annotations: &SizeAnnotations,
    mut sets: Vec<&'a ReplicaSet>,
) -> Vec<SetScale<'a>> {
    let wanted = replicas(deployment);
    let maximum = if wanted > 0 { wanted.saturating_add(max_surge(deployment)) } else { 0 };
    let mut left = maximum.saturating_sub(sum(sets.iter().map(|set| size(set))));
    if left > 0 {
        // Among equal sets the newer are scaled up first, and the older down first.
        sets.reverse();
    }
    sets.sort_by_key(|set| std::cmp::Reverse(size(set)));
    let mut sizes = Vec::new();
    for set in &sets {
        let most_before =
            annotations.most_before(set).unwrap_or(i64::from(deployment.status.replicas));
        let change = share_of(size(set), maximum, most_before).saturating_sub(size(set));
        let change = match left {
            0 => 0,
            1.. => change.min(left),
            _ => change.max(left),
        };
        left = left.saturating_sub(change);
        sizes.push(size(set).saturating_add(change));
    }
    if let Some(first) = sizes.first_mut() {
        *first = first.saturating_add(left).max(0);
    }
    let scales = sets.into_iter().zip(sizes).map(|(set, replicas)| SetScale { set, replicas });
    scales.filter(|scale| is_change(scale, annotations)).collect()
}

/// The size among `maximum` pods of a set that has this size among `most_before`, rounded; its size if that is not known.
fn share_of(size: i64, maximum: i64, most_before: i64) -> i64 {
    let twice = size.saturating_mul(maximum).saturating_mul(2).saturating_add(most_before);
    let share = twice.checked_div(most_before.saturating_mul(2));
    share.filter(|_| most_before > 0).unwrap_or(size)
}
