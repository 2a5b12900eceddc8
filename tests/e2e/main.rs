//! Whole clusters on real containerd and kernel: operations of users, and faults.
//!
//! `cargo test -p orch-tests --test e2e -- [FILTER]`; needs root, containerd and the built programs (`ORCH_BIN_DIR`).

mod api_outage;
mod autoscaling;
mod churn;
mod claims;
mod clients;
mod clock_jump;
mod command_line;
mod context;
mod cri_interceptor;
mod csi;
mod csi_faults;
mod deletion;
mod devices;
mod disk_full;
mod disk_pressure;
mod dns;
mod docker_nodes;
mod explain;
mod faults;
mod first_hour;
mod hangs;
mod health;
mod hollow;
mod identity;
mod inventory;
mod lost_nodes;
mod mounts;
mod node;
mod node_endpoint;
mod node_return;
mod orchadm;
mod pod_fields;
mod pods;
mod quotas;
mod roles;
mod scheduling;
mod services;
mod stolen_credentials;
mod subpath_refresh;
mod volume_updates;
mod volumes;

use std::process::ExitCode;

use orch_tests::case;
use orch_tests::runner::{Case, Tally, run};

use crate::context::Context;

fn cases() -> Vec<Case<Context>> {
    vec![
        case!(services::the_demo_answers_from_the_host_and_from_a_pod),
        case!(services::an_endpoint_that_goes_away_gets_no_traffic),
        case!(services::a_balancer_service_has_gates_affinity_and_a_health_check),
        case!(explain::the_proxy_explains_itself),
        case!(dns::a_pod_resolves_names_of_the_cluster),
        case!(dns::names_are_answered_again_after_a_kill),
        case!(pods::a_static_pod_runs_and_its_mirror_shows_it),
        case!(pods::init_containers_run_in_order_before_the_others),
        case!(pods::a_deleted_pod_leaves_nothing),
        case!(node::an_invalid_image_name_is_reported),
        case!(node::events_report_what_happens_to_a_node),
        case!(node::a_critical_pod_gets_room),
        case!(pod_fields::a_container_finds_what_its_pod_says),
        case!(pod_fields::what_no_node_can_give_is_refused_by_name),
        case!(devices::a_plugins_device_reaches_one_container),
        case!(node_endpoint::the_node_tells_what_is_used_and_why),
        case!(health::a_failing_liveness_probe_restarts_the_container),
        case!(health::readiness_decides_about_endpoints_and_survives_the_agent),
        case!(health::hooks_run_after_the_start_and_before_the_stop),
        case!(health::sidecars_start_in_order_and_stop_last),
        case!(health::an_ephemeral_container_sees_its_target),
        case!(volumes::a_config_map_change_reaches_the_file),
        case!(volumes::a_missing_config_map_is_waited_for),
        case!(volumes::secrets_tokens_and_downward_fields_are_projected),
        case!(volumes::parts_of_volumes_are_given_and_never_lead_out),
        case!(volumes::paths_and_devices_of_the_node_are_what_they_should_be),
        case!(volume_updates::a_reader_sees_whole_versions_whatever_happens),
        case!(mounts::read_only_goes_all_the_way_down),
        case!(mounts::a_mount_made_in_a_pod_travels),
        case!(mounts::a_disk_of_the_node_gets_a_file_system_and_keeps_it),
        case!(csi::a_drivers_volume_lives_its_life),
        case!(csi::every_fault_of_a_driver_ends_well),
        case!(csi::what_is_not_attached_is_waited_for),
        case!(quotas::a_quota_is_exact_while_pods_come_and_go),
        case!(autoscaling::a_target_that_is_busy_gets_more_pods),
        case!(scheduling::a_pod_of_higher_priority_gets_the_place),
        case!(claims::a_claim_gets_the_volume_that_fits_and_keeps_it),
        case!(claims::a_deleted_claim_leaves_its_volume_by_reclaim_policy),
        case!(claims::a_volume_is_made_where_the_pod_goes),
        case!(claims::a_pod_goes_where_there_is_room_for_its_volume),
        case!(csi_faults::a_driver_that_fails_later_harms_nothing_else),
        case!(csi_faults::a_node_that_lost_its_mounts_gets_them_back),
        case!(csi_faults::a_driver_that_cannot_unstage_holds_no_pod),
        case!(clients::kubectl_does_what_people_do_daily),
        case!(command_line::orchctl_streams_with_containers),
        case!(faults::a_killed_agent_restarts_no_container),
        case!(faults::what_is_dropped_behind_the_agents_back_leaves_nothing),
        case!(faults::a_killed_proxy_keeps_forwarding),
        case!(faults::a_killed_api_server_loses_no_write),
        case!(identity::a_node_joins_by_token_and_renews_its_certificates),
        case!(roles::a_summed_role_gives_what_its_parts_give),
        case!(stolen_credentials::each_opens_only_what_it_is_for),
        case!(orchadm::two_hosts_become_a_cluster_and_are_hosts_again),
        case!(orchadm::control_planes_share_an_etcd),
        // Last: the cases before it look at the only node.
        case!(hollow::hollow_nodes_take_pods_and_let_go_of_them),
        case!(services::a_cluster_grows_and_pods_reach_each_other),
        case!(claims::a_volume_for_one_node_moves_to_another),
    ]
}

/// Cases about the machine and not about names, which are asked once.
fn machine_cases() -> Vec<Case<Context>> {
    vec![
        case!(churn::an_agent_killed_again_and_again_is_not_noticed),
        case!(hangs::a_call_of_the_runtime_that_hangs_harms_one_pod),
        case!(hangs::a_shim_that_hangs_harms_one_pod),
        case!(hangs::a_runtime_that_hangs_is_reported),
        case!(disk_full::exhausted_file_descriptors_are_reported_and_recovered),
        case!(disk_full::a_full_disk_is_lived_through),
        case!(disk_full::a_full_disk_of_the_store_refuses_writes_until_there_is_room),
        case!(disk_pressure::a_disk_that_runs_short_is_cleared_in_order),
        case!(subpath_refresh::a_part_of_a_config_map_follows_where_its_pod_asks),
        case!(api_outage::pods_live_without_the_api_server),
        case!(api_outage::a_runtime_that_is_killed_is_found_again),
        case!(clock_jump::a_clock_that_is_set_starts_and_ends_nothing),
        case!(lost_nodes::volumes_leave_nodes_that_are_lost),
        case!(first_hour::a_cluster_comes_up_in_a_pipe_and_is_closed_to_others),
        case!(first_hour::everyday_commands_are_answered_as_kubernetes_answers),
        case!(deletion::dependents_and_evictions_end_as_requested),
        case!(node_return::pods_of_a_node_that_returns_serve_again),
        case!(pods::a_crashing_container_is_restarted_and_counted),
        case!(node::a_pod_over_its_storage_limits_is_evicted),
        case!(node_endpoint::a_log_is_rotated_and_stays_readable),
        case!(csi::devices_and_claims_of_a_pod_s_own_are_given),
        case!(docker_nodes::docker_nodes_survive_restarts_loss_and_upgrade),
    ]
}

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    if std::env::args().any(|arg| arg == "--list") {
        cases().iter().chain(&machine_cases()).for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(run_all(&filter)),
        Err(e) => {
            eprintln!("no runtime: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn run_all(filter: &str) -> ExitCode {
    let mut tally = Tally::default();
    for naming in ["kubernetes", "orch"] {
        println!("\n== cluster with {naming} names");
        match Context::start(naming).await {
            Ok(context) => {
                // The second profile runs what depends on names.
                if naming == "kubernetes" {
                    run(&context, &machine_cases(), filter, &mut tally).await;
                }
                run(&context, &cases(), filter, &mut tally).await;
                if let Err(e) = context.finish(tally.failed > 0).await {
                    println!("test teardown_leaves_nothing ... FAILED\n    {e:#}");
                    tally.failed += 1;
                } else {
                    println!("test teardown_leaves_nothing ... ok");
                    tally.passed += 1;
                }
            }
            Err(e) => {
                println!("test cluster_starts ... FAILED\n    {e:#}");
                tally.failed += 1;
            }
        }
    }
    println!("\n{}", tally.line());
    tally.code()
}
