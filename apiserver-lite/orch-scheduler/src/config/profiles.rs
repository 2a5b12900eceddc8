//! `profiles` of the configuration file: plugins that are left out or weighed otherwise, and their arguments.

mod spread;

use std::collections::BTreeSet;

use apiserver_scheduling::profile::{Filter, FitStrategy, Profile, Score, WEIGHT_MAX};
use proto_api::core::v1::NodeAffinity;
use proto_api::names::Names;
use proto_daemon::config::FieldError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The `schedulerName` of pods that name none.
pub(crate) const DEFAULT_NAME: &str = "default-scheduler";
/// Plugin that ends pods of lower priority.
const PREEMPTION: &str = "DefaultPreemption";
/// Plugins without which pods cannot be scheduled: they stay as they are.
const FIXED: [&str; 4] = ["PrioritySort", "NodeName", "VolumeBinding", "DefaultBinder"];
/// Those of them that are filters.
const FIXED_FILTERS: [&str; 2] = ["NodeName", "VolumeBinding"];
/// Plugins of files for older releases. No pod of ours is spread by the first, nor does a node say what the second reads.
const OBSOLETE: [&str; 2] = ["SelectorSpread", "NodePreferAvoidPods"];
/// Every plugin.
const ALL: &str = "*";

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FileProfile {
    pub scheduler_name: String,
    pub percentage_of_nodes_to_score: Value,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
}

/// The plugins of each extension point. At the others no plugin of ours can be left out.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Plugins {
    pub multi_point: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub score: PluginSet,
    pub queue_sort: Value,
    pub pre_filter: Value,
    pub pre_score: Value,
    pub reserve: Value,
    pub permit: Value,
    pub pre_bind: Value,
    pub bind: Value,
    pub post_bind: Value,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PluginSet {
    pub enabled: Vec<Plugin>,
    pub disabled: Vec<Plugin>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Plugin {
    pub name: String,
    pub weight: i64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PluginConfig {
    pub name: String,
    pub args: Value,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == ALL || plugin.name == name)
    }

    fn enabled(&self, name: &str) -> Option<&Plugin> {
        self.enabled.iter().find(|plugin| plugin.name == name)
    }
}

impl Plugins {
    /// Whether a plugin is used at an extension point; one that `is_default` is unless it is disabled.
    fn uses(&self, point: &PluginSet, name: &str, is_default: bool) -> bool {
        let by_default = self.multi_point.enabled(name).is_some()
            || is_default && !self.multi_point.disables(name);
        point.enabled(name).is_some() || by_default && !point.disables(name)
    }

    /// The weight of a default score; that of an entry without one is 1.
    fn weight(&self, name: &str, default: i64) -> i64 {
        let by_default = !self.score.disables(name);
        let multi = self.multi_point.enabled(name).filter(|_| by_default);
        self.score.enabled(name).or(multi).map_or(default, |plugin| plugin.weight.max(1))
    }

    fn sets(&self) -> [(&'static str, &PluginSet); 4] {
        [
            ("multiPoint", &self.multi_point),
            ("filter", &self.filter),
            ("postFilter", &self.post_filter),
            ("score", &self.score),
        ]
    }
}

/// Adds a fault at a field.
struct Faults<'a> {
    path: String,
    found: &'a mut Vec<FieldError>,
}

impl Faults<'_> {
    fn add(&mut self, field: &str, why: impl Into<String>) {
        self.found.push(FieldError::new(format!("{}.{field}", self.path), why));
    }
}

/// Every fault of the profiles.
pub(super) fn find_faults(profiles: &[FileProfile]) -> Vec<FieldError> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    // The names of plugins do not depend on it.
    let domain = Names::new(proto_api::names::Profile::Kubernetes);
    for (nth, profile) in profiles.iter().enumerate() {
        let mut faults = Faults { path: format!("profiles[{nth}]"), found: &mut found };
        let name = &profile.scheduler_name;
        if name.is_empty() && profiles.len() > 1 {
            faults.add("schedulerName", "is required where there are several profiles");
        } else if !names.insert(name) {
            faults.add("schedulerName", format!("{name:?} is the name of another profile"));
        }
        read_profile(domain, profile, &mut faults);
    }
    found
}

/// The profiles for a scheduler; those of a valid file.
pub(super) fn select_profiles(names: &Names, profiles: &[FileProfile]) -> Vec<Profile> {
    let mut found = Vec::new();
    let mut faults = Faults { path: String::new(), found: &mut found };
    profiles.iter().map(|profile| read_profile(names, profile, &mut faults)).collect()
}

fn read_profile(names: &Names, file: &FileProfile, faults: &mut Faults<'_>) -> Profile {
    let name = if file.scheduler_name.is_empty() { DEFAULT_NAME } else { &file.scheduler_name };
    let mut profile = Profile::new(names, name);
    let plugins = &file.plugins;
    for (point, set) in plugins.sets() {
        for (list, plugins) in [("enabled", &set.enabled), ("disabled", &set.disabled)] {
            for (nth, plugin) in plugins.iter().enumerate() {
                let field = |name: &str| format!("plugins.{point}.{list}[{nth}].{name}");
                if !is_known(&plugin.name) && (list == "enabled" || plugin.name != ALL) {
                    faults.add(&field("name"), format!("there is no plugin {:?}", plugin.name));
                }
                if !(0..=WEIGHT_MAX).contains(&plugin.weight) {
                    faults.add(&field("weight"), format!("must be between 0 and {WEIGHT_MAX}"));
                }
            }
        }
    }
    for (name, filter) in Filter::ALL {
        match plugins.uses(&plugins.filter, name, filter.is_default()) {
            true => profile.left_out.remove(&filter),
            false => profile.left_out.insert(filter),
        };
    }
    profile.scores.clear();
    for (name, score, weight) in Score::ALL {
        if plugins.uses(&plugins.score, name, true) {
            profile.scores.push((score, plugins.weight(name, weight)));
        }
    }
    if !plugins.uses(&plugins.post_filter, PREEMPTION, true) {
        profile.preemption = None;
    }
    for (nth, config) in file.plugin_config.iter().enumerate() {
        if file.plugin_config.iter().take(nth).any(|other| other.name == config.name) {
            faults.add(&format!("pluginConfig[{nth}].name"), "stands there twice");
        }
        for fault in read_arguments(names, &mut profile, config) {
            faults.add(&format!("pluginConfig[{nth}].{}", fault.path), fault.message);
        }
    }
    profile
}

fn is_filter(name: &str) -> bool {
    Filter::ALL.iter().any(|(known, _)| *known == name)
}

fn is_score(name: &str) -> bool {
    Score::ALL.iter().any(|(known, ..)| *known == name)
}

fn is_known(name: &str) -> bool {
    is_filter(name)
        || is_score(name)
        || FIXED.contains(&name)
        || OBSOLETE.contains(&name)
        || name == PREEMPTION
}

/// Whether a plugin that is known does something at an extension point.
fn acts_at(point: &str, name: &str) -> bool {
    match point {
        "filter" => is_filter(name) || FIXED_FILTERS.contains(&name),
        "score" => is_score(name),
        "postFilter" => name == PREEMPTION,
        _ => !OBSOLETE.contains(&name),
    }
}

/// What a profile asks for that nothing is done about.
pub(super) fn list_warnings(nth: usize, profile: &FileProfile) -> Vec<String> {
    let mut warnings = Vec::new();
    for (point, set) in profile.plugins.sets() {
        let fixed = |plugin: &&Plugin| {
            let name = plugin.name.as_str();
            FIXED.contains(&name) && !FIXED_FILTERS.contains(&name)
        };
        for Plugin { name, .. } in set.disabled.iter().filter(fixed) {
            warnings.push(format!("profiles[{nth}].plugins.{point}: {name} is not left out"));
        }
        for Plugin { name, .. } in set.enabled.iter().filter(|of| !acts_at(point, &of.name)) {
            warnings.push(format!("profiles[{nth}].plugins.{point}: {name} has no effect there"));
        }
    }
    // By its name or with all others.
    let plugins = &profile.plugins;
    for name in FIXED_FILTERS.iter().filter(|name| !plugins.uses(&plugins.filter, name, true)) {
        warnings.push(format!("profiles[{nth}].plugins: the filter {name} is not left out"));
    }
    let configs = profile.plugin_config.iter();
    for config in configs.filter(|config| WITHOUT_ARGUMENTS.contains(&config.name.as_str())) {
        let name = &config.name;
        warnings.push(format!("profiles[{nth}].pluginConfig: arguments of {name} have no effect"));
    }
    warnings
}

// === Arguments ===

/// Plugins whose arguments are accepted for existing files.
const WITHOUT_ARGUMENTS: [&str; 1] = ["VolumeBinding"];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct FitArguments {
    api_version: String,
    kind: String,
    ignored_resources: BTreeSet<String>,
    ignored_resource_groups: BTreeSet<String>,
    scoring_strategy: ScoringStrategy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    type_: String,
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ResourceSpec {
    name: String,
    weight: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Ratio {
    shape: Vec<ShapePoint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct BalancedArguments {
    api_version: String,
    kind: String,
    resources: Vec<ResourceSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct PodAffinityArguments {
    api_version: String,
    kind: String,
    hard_pod_affinity_weight: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct NodeAffinityArguments {
    api_version: String,
    kind: String,
    added_affinity: Option<NodeAffinity>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct PreemptionArguments {
    api_version: String,
    kind: String,
    min_candidate_nodes_percentage: Option<i32>,
    min_candidate_nodes_absolute: Option<i32>,
}

fn parse<T: DeserializeOwned + Default>(config: &PluginConfig) -> Result<T, FieldError> {
    if config.args.is_null() {
        return Ok(T::default());
    }
    T::deserialize(&config.args).map_err(|error| FieldError::new("args", error.to_string()))
}

/// Checks the type of arguments, which need not be given.
fn check_type(config: &PluginConfig, api_version: &str, kind: &str) -> Result<(), FieldError> {
    let expected = format!("{}Args", config.name);
    if !kind.is_empty() && kind != expected {
        return Err(FieldError::new("args.kind", format!("must be {expected}")));
    }
    if !api_version.is_empty() && !api_version.contains(".config.") {
        return Err(FieldError::new("args.apiVersion", "must be that of the file"));
    }
    Ok(())
}

/// Sets the arguments of a plugin. Gives what is wrong with them.
fn read_arguments(names: &Names, profile: &mut Profile, config: &PluginConfig) -> Vec<FieldError> {
    match config.name.as_str() {
        spread::PLUGIN => spread::set_arguments(names, profile, config),
        _ => set_arguments(profile, config).err().into_iter().collect(),
    }
}

fn set_arguments(profile: &mut Profile, config: &PluginConfig) -> Result<(), FieldError> {
    match config.name.as_str() {
        "NodeResourcesFit" => set_fit(profile, config),
        "NodeResourcesBalancedAllocation" => {
            let args: BalancedArguments = parse(config)?;
            check_type(config, &args.api_version, &args.kind)?;
            let resources = read_weights(&args.resources, "args.resources", 1)?;
            if !resources.is_empty() {
                profile.balanced = resources.into_iter().map(|(resource, _)| resource).collect();
            }
            Ok(())
        }
        "InterPodAffinity" => {
            let args: PodAffinityArguments = parse(config)?;
            check_type(config, &args.api_version, &args.kind)?;
            let weight = args.hard_pod_affinity_weight.unwrap_or(1);
            if !(0..=100).contains(&weight) {
                let field = "args.hardPodAffinityWeight";
                return Err(FieldError::new(field, "must be between 0 and 100"));
            }
            profile.hard_pod_affinity_weight = weight;
            Ok(())
        }
        "NodeAffinity" => {
            let args: NodeAffinityArguments = parse(config)?;
            check_type(config, &args.api_version, &args.kind)?;
            let added = args.added_affinity.unwrap_or_default();
            profile.added_affinity.required =
                added.required_during_scheduling_ignored_during_execution;
            profile.added_affinity.preferred =
                added.preferred_during_scheduling_ignored_during_execution;
            Ok(())
        }
        PREEMPTION => set_preemption(profile, config),
        name if WITHOUT_ARGUMENTS.contains(&name) => Ok(()),
        name if is_known(name) => {
            Err(FieldError::new("name", format!("plugin {name:?} has no arguments")))
        }
        name => Err(FieldError::new("name", format!("there is no plugin {name:?}"))),
    }
}

fn set_preemption(profile: &mut Profile, config: &PluginConfig) -> Result<(), FieldError> {
    let args: PreemptionArguments = parse(config)?;
    check_type(config, &args.api_version, &args.kind)?;
    let (percent, least) = (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute);
    let mut number = profile.preemption.unwrap_or_default();
    if let Some(percent) = percent {
        let field = "args.minCandidateNodesPercentage";
        let percent = usize::try_from(percent).ok().filter(|percent| *percent <= 100);
        number.percentage =
            percent.ok_or_else(|| FieldError::new(field, "must be between 0 and 100"))?;
    }
    if let Some(least) = least {
        let least = usize::try_from(least);
        let field = "args.minCandidateNodesAbsolute";
        number.absolute = least.map_err(|_| FieldError::new(field, "must be at least 0"))?;
    }
    if (number.percentage, number.absolute) == (0, 0) {
        let why = "must not be 0 with minCandidateNodesPercentage 0";
        return Err(FieldError::new("args.minCandidateNodesAbsolute", why));
    }
    profile.preemption = profile.preemption.map(|_| number);
    Ok(())
}

fn set_fit(profile: &mut Profile, config: &PluginConfig) -> Result<(), FieldError> {
    let args: FitArguments = parse(config)?;
    check_type(config, &args.api_version, &args.kind)?;
    let ScoringStrategy { type_, resources, requested_to_capacity_ratio } = args.scoring_strategy;
    let fit = &mut profile.fit;
    fit.ignored_resources = args.ignored_resources;
    fit.ignored_groups = args.ignored_resource_groups;
    let resources = read_weights(&resources, "args.scoringStrategy.resources", 100)?;
    if !resources.is_empty() {
        fit.resources = resources;
    }
    fit.strategy = match type_.as_str() {
        "" | "LeastAllocated" => FitStrategy::LeastAllocated,
        "MostAllocated" => FitStrategy::MostAllocated,
        "RequestedToCapacityRatio" => {
            let shape = requested_to_capacity_ratio.unwrap_or_default().shape;
            FitStrategy::RequestedToCapacityRatio(check_shape(&shape)?)
        }
        _ => {
            let why = "must be LeastAllocated, MostAllocated or RequestedToCapacityRatio";
            return Err(FieldError::new("args.scoringStrategy.type", why));
        }
    };
    Ok(())
}

/// Resources with their weights, 1 where none is given.
fn read_weights(
    resources: &[ResourceSpec],
    field: &str,
    most: i64,
) -> Result<Vec<(String, i64)>, FieldError> {
    let mut all = Vec::new();
    for (nth, ResourceSpec { name, weight }) in resources.iter().enumerate() {
        let weight = if *weight == 0 { 1 } else { *weight };
        if name.is_empty() {
            return Err(FieldError::new(format!("{field}[{nth}].name"), "is required"));
        }
        if !(1..=most).contains(&weight) {
            let why = format!("must be between 1 and {most}");
            return Err(FieldError::new(format!("{field}[{nth}].weight"), why));
        }
        all.push((name.clone(), weight));
    }
    Ok(all)
}

/// Points in rising order, with scores of 0 to 10 as 0 to 100.
fn check_shape(shape: &[ShapePoint]) -> Result<Vec<(i64, i64)>, FieldError> {
    let field = "args.scoringStrategy.requestedToCapacityRatio.shape";
    let mut points: Vec<(i64, i64)> = Vec::new();
    for (nth, ShapePoint { utilization, score }) in shape.iter().enumerate() {
        let fault = |field: String, why: &str| Err(FieldError::new(field, why));
        let rises = points.last().is_none_or(|(before, _)| utilization > before);
        if !(0..=100).contains(utilization) || !rises {
            let why = "must be between 0 and 100, and above the one before";
            return fault(format!("{field}[{nth}].utilization"), why);
        }
        if !(0..=10).contains(score) {
            return fault(format!("{field}[{nth}].score"), "must be between 0 and 10");
        }
        points.push((*utilization, score.saturating_mul(10)));
    }
    if points.is_empty() { Err(FieldError::new(field, "is required")) } else { Ok(points) }
}

#[cfg(test)]
mod tests;
