//! Kills the members of an etcd again and again, its leader among them, under writers, readers and watchers of two stores, judges what they saw, and prints
//! the table of `tests/results/kill.md`: `cargo run -p apiserver-store-etcd --example kill_members -- --members 3 --kills 200`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    dead_code,
    reason = "a program of the tests, whose modules it uses in part"
)]

use std::time::{Duration, Instant};

use apiserver_store_etcd::EtcdConfig;
use clap::Parser;

#[path = "../tests/etcd/churn.rs"]
mod churn;
#[path = "../tests/etcd/etcd_process.rs"]
mod etcd_process;
#[path = "../tests/etcd/members.rs"]
mod members;
#[path = "../../store/tests/histories/order.rs"]
mod order;
#[path = "../tests/etcd/support.rs"]
mod support;

use churn::{Churn, Totals};
use etcd_process::EtcdProcess;
use members::Members;

/// Kills members of an etcd under load, and judges what clients saw.
#[derive(Parser)]
struct Wanted {
    /// Members of the etcd
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// Kills, those of several members at a time each counted
    #[arg(long, default_value_t = 20)]
    kills: usize,
}

/// Failures between two judgements.
const FAILURES_OF_A_ROUND: usize = 10;
/// Writes that are answered between two failures.
const WRITES_BETWEEN: u64 = 20;

/// What is done to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    LeaderKilled,
    FollowerKilled,
    QuorumKilled,
    LeaderStopped,
}

impl Failure {
    /// Of each ten: six kill the leader, two a follower, one takes the quorum away, in one the leader hangs.
    fn nth(nth: usize) -> Self {
        match nth % 10 {
            6 | 7 => Failure::FollowerKilled,
            8 => Failure::QuorumKilled,
            9 => Failure::LeaderStopped,
            _ => Failure::LeaderKilled,
        }
    }
}

/// How often each happened, and how long until a write was answered after it.
#[derive(Default)]
struct Failures {
    kills: usize,
    of_leaders: usize,
    without_quorum: usize,
    hangs: usize,
    outages: Vec<Duration>,
}

#[tokio::main]
async fn main() {
    let wanted = Wanted::parse();
    assert!(wanted.members >= 3, "one of fewer than 3 members is not missed: want --members 3");
    let name = "kill_members";
    let Some(mut members) = Members::start(name, wanted.members) else { return };
    let config = EtcdConfig {
        compaction_interval: Duration::from_secs(20),
        ..EtcdConfig::new(members.urls())
    };
    let first = support::open_with(config.clone()).await.unwrap();
    let stores = [first, support::open_with(config).await.unwrap()];
    let (mut failures, mut totals, mut round, mut nth) =
        (Failures::default(), Totals::default(), 0, 0);
    let began = Instant::now();
    while failures.kills < wanted.kills {
        let churn = Churn::start(&stores, round);
        for _ in 0..FAILURES_OF_A_ROUND {
            if failures.kills >= wanted.kills {
                break;
            }
            fail(&mut members, Failure::nth(nth), &churn, &mut failures).await;
            nth += 1;
        }
        let of_round = churn.stop().await;
        eprintln!("{} kills, {:.0} s: {of_round:?}", failures.kills, began.elapsed().as_secs_f64());
        add(&mut totals, &of_round);
        round += 1;
    }
    print(&failures, &totals, began.elapsed());
}

/// One failure, from a cluster that answers to one that answers.
async fn fail(members: &mut Members, failure: Failure, churn: &Churn, failures: &mut Failures) {
    churn.go_on(WRITES_BETWEEN).await;
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..500))).await;
    let leader = members.leader(None).await;
    let count = members.0.len();
    let follower = (leader + rand::random_range(1..count)) % count;
    let began = Instant::now();
    match failure {
        Failure::LeaderStopped => {
            members.0[leader].signal("-STOP");
            members.leader(Some(leader)).await;
            churn.go_on(WRITES_BETWEEN).await;
            members.0[leader].signal("-CONT");
            failures.hangs += 1;
        }
        Failure::QuorumKilled => {
            let of_quorum = (0..=count / 2).map(|nth| (leader + nth) % count);
            of_quorum.for_each(|nth| members.0[nth].kill());
            failures.kills += count / 2 + 1;
            failures.of_leaders += 1;
            failures.without_quorum += 1;
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..4000))).await;
            members.0.iter_mut().filter(|member| !member.runs()).for_each(EtcdProcess::restart);
            churn.go_on(WRITES_BETWEEN).await;
        }
        Failure::LeaderKilled | Failure::FollowerKilled => {
            let is_leader = failure == Failure::LeaderKilled;
            let nth = if is_leader { leader } else { follower };
            members.0[nth].kill();
            failures.kills += 1;
            failures.of_leaders += usize::from(is_leader);
            churn.go_on(WRITES_BETWEEN).await;
        }
    }
    failures.outages.push(began.elapsed());
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..500))).await;
    members.restart_all();
    churn.go_on(WRITES_BETWEEN).await;
}

fn add(totals: &mut Totals, of_round: &Totals) {
    totals.done += of_round.done;
    totals.unknown += of_round.unknown;
    totals.unknown_done += of_round.unknown_done;
    totals.refused += of_round.refused;
    totals.reads += of_round.reads;
    totals.reads_refused += of_round.reads_refused;
    totals.operations += of_round.operations;
    totals.events += of_round.events;
    totals.resumed += of_round.resumed;
}

fn print(failures: &Failures, totals: &Totals, took: Duration) {
    let mut outages: Vec<f64> = failures.outages.iter().map(Duration::as_secs_f64).collect();
    outages.sort_by(f64::total_cmp);
    let median = outages.get(outages.len() / 2).copied().unwrap_or_default();
    let longest = outages.last().copied().unwrap_or_default();
    println!("| | |\n|---|---|");
    println!(
        "| kills (of the leader; times that no quorum was left) | {} ({}; {}) in {:.0} s |",
        failures.kills,
        failures.of_leaders,
        failures.without_quorum,
        took.as_secs_f64()
    );
    println!("| leaders that hung until another was elected, and went on | {} |", failures.hangs);
    println!(
        "| from the failure until {WRITES_BETWEEN} writes were answered: median, longest | {median:.1} s, {longest:.1} s |"
    );
    println!(
        "| writes answered; each there at its revision, no revision twice | {} |",
        totals.done
    );
    println!(
        "| writes not answered; of them done, once | {}; {} |",
        totals.unknown, totals.unknown_done
    );
    println!(
        "| writes refused, by a conflict or without etcd; of them done | {}; 0 |",
        totals.refused
    );
    println!("| reads answered, refused | {}, {} |", totals.reads, totals.reads_refused);
    println!(
        "| operations on single registers, in an order that explains them all | {} |",
        totals.operations
    );
    println!(
        "| events, seen once by each of the watchers; watches begun, each after the last event | {}; {} |",
        totals.events, totals.resumed
    );
}
