//! Random histories of an autoscaler: whatever pods use and whatever is missing, some things never happen.

use proptest::prelude::*;
use proto_api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerBehavior,
};
use proto_api::core::v1::Pod;

use crate::clocks::Clocks;
use crate::error::NoUsage;
use crate::history::ScaleHistory;
use crate::plan::{ObservedAutoscaler, Scale, plan};
use crate::settings::AutoscalerSettings;
use crate::testing::{NOW, autoscaler, clocks, cpu_percent, pod, steady, time, usage};

/// What happens in a step.
#[derive(Clone, Debug)]
struct Step {
    /// Seconds since the last one.
    after: i64,
    /// What a pod uses, in thousandths; pods beyond the list use what the last one does.
    used: Vec<i64>,
    /// How many pods, from the first on, have no metrics.
    missing: usize,
    /// Whether the metrics API is away.
    is_away: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let used = prop::collection::vec(0i64..4000, 1..5);
    let missing = prop_oneof![3 => Just(0usize), 1 => 0usize..20];
    let away = prop::bool::weighted(0.1);
    (1i64..200, used, missing, away).prop_map(|(after, used, missing, is_away)| Step {
        after,
        used,
        missing,
        is_away,
    })
}

fn rules() -> impl Strategy<Value = HPAScalingRules> {
    let policy = (prop::bool::ANY, 1i32..200, 1i32..600).prop_map(|(pods, value, period)| {
        let type_ = if pods { "Pods" } else { "Percent" }.to_owned();
        HPAScalingPolicy { type_, value, period_seconds: period }
    });
    let select = prop_oneof![Just("Max"), Just("Min"), Just("Disabled")];
    let window = prop::option::of(0i32..600);
    (window, select, prop::collection::vec(policy, 0..3)).prop_map(|(window, select, policies)| {
        HPAScalingRules {
            stabilization_window_seconds: window,
            select_policy: Some(select.to_owned()),
            policies,
        }
    })
}

fn behavior() -> impl Strategy<Value = Option<HorizontalPodAutoscalerBehavior>> {
    let both = (prop::option::of(rules()), prop::option::of(rules()));
    let both = both.prop_map(|(scale_up, scale_down)| HorizontalPodAutoscalerBehavior {
        scale_up,
        scale_down,
    });
    prop::option::of(both)
}

/// What was recommended when.
type Recommended = Vec<(i64, i32)>;

/// The window in which a target is not scaled down below what was recommended.
fn down_window(hpa: &HorizontalPodAutoscaler) -> i64 {
    let down = hpa.spec.behavior.as_ref().and_then(|rules| rules.scale_down.as_ref());
    let own = down.and_then(|rules| rules.stabilization_window_seconds);
    own.map_or(AutoscalerSettings::default().downscale_stabilization, i64::from)
}

/// The replicas that all metrics of a step ask for, by the definition: what is used by what is wanted, with no bounds. Unset if not everything is known.
fn compute_expected(step: &Step, replicas: i32, percent: i32) -> Option<i32> {
    if step.is_away || step.missing > 0 || replicas == 0 {
        return None;
    }
    let used: i64 = (0..replicas).map(|at| used_by(step, at)).sum();
    let now = used * 100 / (i64::from(replicas) * 1000);
    let ratio = now as f64 / f64::from(percent);
    let is_right = (1.0 - ratio).abs() <= AutoscalerSettings::default().tolerance;
    Some(if is_right { replicas } else { (ratio * f64::from(replicas)).ceil() as i32 })
}

fn used_by(step: &Step, pod: i32) -> i64 {
    let at = usize::try_from(pod).unwrap_or(usize::MAX);
    step.used.get(at).or(step.used.last()).copied().unwrap_or_default()
}

/// Runs an autoscaler. `offset` says by how many seconds the wall clock is off in a step. Gives what is remembered, and the replicas after each step.
fn run(
    hpa: &HorizontalPodAutoscaler,
    percent: i32,
    start: i32,
    steps: &[Step],
    offset: &dyn Fn(usize) -> i64,
) -> (ScaleHistory, Vec<i32>) {
    let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
    let (mut history, mut replicas, mut now) = (ScaleHistory::default(), start, NOW);
    let mut hpa = hpa.clone();
    let mut recommended: Recommended = vec![(now, start)];
    let mut course = Vec::new();
    for (nth, step) in steps.iter().enumerate() {
        now += step.after;
        let clocks = Clocks { steady: steady(now), wall: time(now + offset(nth)) };
        course.push(replicas);
        let names: Vec<String> = (0..replicas).map(|at| format!("p{at}")).collect();
        let pods: Vec<Pod> = names.iter().map(|name| pod(name)).collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let known = names.iter().zip(0..).skip(step.missing);
        let usage = match step.is_away {
            true => Err(NoUsage("away".to_owned())),
            false => Ok(known.map(|(name, at)| usage(name, used_by(step, at))).collect()),
        };
        let scale = Scale { replicas, selector: "a=b".to_owned() };
        let observed = ObservedAutoscaler { scale: &scale, pods: &pods, usage: &usage };
        let plan = plan(&hpa, &observed, &mut history, &AutoscalerSettings::default(), clocks);
        let Some(to) = plan.scale_to else {
            hpa.status = plan.unchanged().status;
            recommended.extend(compute_expected(step, replicas, percent).map(|asked| (now, asked)));
            continue;
        };
        assert!((min..=max).contains(&to), "{to} replicas, of {min} to {max}");
        let was_within = (min..=max).contains(&replicas);
        if was_within {
            assert!(!step.is_away, "scaled without any metrics");
            let most = usage.as_ref().map_or(0, Vec::len);
            assert!(most > 0, "scaled although no pod has metrics");
            let asked = compute_expected(step, replicas, percent);
            // Without rules the highest of the last minutes may still be above what the target was scaled to.
            if let Some(asked) = asked.filter(|_| hpa.spec.behavior.is_some()) {
                let wrong = asked <= replicas && to > replicas;
                assert!(!wrong, "{replicas} to {to}, and {asked} were asked for");
            }
            if to < replicas {
                let start = now - down_window(&hpa);
                let recent = recommended.iter().filter(|(at, _)| *at > start);
                let highest = recent.map(|(_, asked)| *asked).max().unwrap_or(0);
                let floor = highest.min(replicas);
                assert!(to >= floor, "{replicas} to {to}, although {floor} were asked for lately");
            }
            recommended.extend(asked.map(|asked| (now, asked)));
        }
        let outcome = plan.scaled(&hpa, to, &mut history, clocks);
        assert_eq!(
            (outcome.status.current_replicas, outcome.status.desired_replicas),
            (replicas, to)
        );
        hpa.status = outcome.status;
        replicas = to;
    }
    assert!(history.len() <= 3 * (steps.len() + 1));
    course.push(replicas);
    (history, course)
}

proptest! {
    #[test]
    fn an_autoscaler_keeps_its_promises(
        (min, more) in (1i32..5, 0i32..40),
        start in 1i32..50,
        percent in 10i32..150,
        behavior in behavior(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut hpa = autoscaler(min, min + more, vec![cpu_percent(percent)]);
        hpa.spec.behavior = behavior;
        run(&hpa, percent, start, &steps, &|_| 0);
    }

    /// The pods are older than the clock is ever set back: they have times of it.
    #[test]
    fn a_wall_clock_that_is_set_decides_nothing(
        start in 1i32..50,
        percent in 10i32..150,
        behavior in behavior(),
        steps in prop::collection::vec((step(), prop_oneof![Just(0), -9_000i64..1_000_000]), 1..30),
    ) {
        let mut hpa = autoscaler(1, 60, vec![cpu_percent(percent)]);
        hpa.spec.behavior = behavior;
        let (steps, offsets): (Vec<Step>, Vec<i64>) = steps.into_iter().unzip();
        let right = run(&hpa, percent, start, &steps, &|_| 0);
        prop_assert_eq!(right, run(&hpa, percent, start, &steps, &|nth| offsets[nth]));
    }

    /// With missing metrics a target is scaled no further than if the missing pods used nothing upwards, and all that they request downwards.
    #[test]
    fn missing_metrics_never_scale_further(
        replicas in 2i32..20,
        missing in 1usize..20,
        used in 0i64..4000,
        percent in 10i32..150,
    ) {
        let hpa = autoscaler(1, 1000, vec![cpu_percent(percent)]);
        let names: Vec<String> = (0..replicas).map(|at| format!("p{at}")).collect();
        let pods: Vec<Pod> = names.iter().map(|name| pod(name)).collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let plan_with = |of: &dyn Fn(usize) -> Option<i64>| {
            let known = names.iter().enumerate();
            let known = known.filter_map(|(at, name)| of(at).map(|milli| usage(name, milli)));
            let usage = Ok(known.collect());
            let scale = Scale { replicas, selector: "a=b".to_owned() };
            let observed = ObservedAutoscaler { scale: &scale, pods: &pods, usage: &usage };
            // Rules without any limit.
            let mut hpa = hpa.clone();
            let policy = HPAScalingPolicy { type_: "Percent".to_owned(), value: 100_000, period_seconds: 1 };
            let rules = HPAScalingRules {
                stabilization_window_seconds: Some(0),
                policies: vec![policy],
                ..HPAScalingRules::default()
            };
            hpa.spec.behavior = Some(HorizontalPodAutoscalerBehavior {
                scale_up: Some(rules.clone()),
                scale_down: Some(rules),
            });
            let plan = plan(&hpa, &observed, &mut ScaleHistory::default(), &AutoscalerSettings::default(), clocks(NOW));
            plan.scale_to.unwrap_or(replicas)
        };
        let with = |assumed: i64| move |at: usize| Some(if at < missing { assumed } else { used });
        let to = plan_with(&|at| (at >= missing).then_some(used));
        if to > replicas {
            prop_assert!(to <= plan_with(&with(0)));
        }
        if to < replicas {
            prop_assert!(to >= plan_with(&with(1000 * i64::from(percent.max(100)) / 100)));
        }
    }
}
