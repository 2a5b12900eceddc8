//! The flags of kube-controller-manager that give a controller a number of workers of its own.

use std::collections::BTreeMap;

use clap::Args;

/// Most workers of one controller.
const WORKERS_MAX: u32 = 64;

/// How many objects of single controllers are reconciled at a time, at most 64 each. Controllers without a number share the workers of
/// --concurrent-tasks.
#[derive(Args, Clone, Debug)]
pub struct SyncFlags {
    /// Workers for Deployments; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_deployment_syncs: Option<u32>,

    /// Workers for Services whose Endpoints are written; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_endpoint_syncs: Option<u32>,

    /// Workers for pods whose ephemeral volumes get claims; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_ephemeralvolume_syncs: Option<u32>,

    /// Workers for objects of the garbage collector; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_gc_syncs: Option<u32>,

    /// Workers for namespaces that are being deleted; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_namespace_syncs: Option<u32>,

    /// Workers for ReplicationControllers; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_rc_syncs: Option<u32>,

    /// Workers for ReplicaSets; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_replicaset_syncs: Option<u32>,

    /// Workers for ResourceQuotas; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_resource_quota_syncs: Option<u32>,

    /// Workers for Services whose EndpointSlices are written; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_service_endpoint_syncs: Option<u32>,

    /// Workers for service accounts with token secrets; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_serviceaccount_token_syncs: Option<u32>,

    /// Workers for StatefulSets; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_statefulset_syncs: Option<u32>,

    /// Workers for finished Jobs with a time to live; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_ttl_after_finished_syncs: Option<u32>,

    /// Workers for Services whose Endpoints are mirrored; those of --concurrent-tasks if not set.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub mirroring_concurrent_service_endpoint_syncs: Option<u32>,

    /// Workers for Services with addresses of load balancers.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrent_service_syncs: u32,
}

impl SyncFlags {
    /// The workers of the controllers that have a number of their own.
    pub fn by_controller(&self) -> BTreeMap<&'static str, usize> {
        let all = [
            ("deployment", self.concurrent_deployment_syncs),
            ("endpoint", self.concurrent_endpoint_syncs),
            ("ephemeral-volume", self.concurrent_ephemeralvolume_syncs),
            ("garbagecollector", self.concurrent_gc_syncs),
            ("namespace", self.concurrent_namespace_syncs),
            ("replicationcontroller", self.concurrent_rc_syncs),
            ("replicaset", self.concurrent_replicaset_syncs),
            ("resourcequota", self.concurrent_resource_quota_syncs),
            ("endpointslice", self.concurrent_service_endpoint_syncs),
            ("service", Some(self.concurrent_service_syncs)),
            ("serviceaccount-token", self.concurrent_serviceaccount_token_syncs),
            ("statefulset", self.concurrent_statefulset_syncs),
            ("ttl-after-finished", self.concurrent_ttl_after_finished_syncs),
            ("endpointslicemirroring", self.mirroring_concurrent_service_endpoint_syncs),
        ];
        let count = |workers: u32| usize::try_from(workers.min(WORKERS_MAX)).unwrap_or(1);
        all.into_iter().filter_map(|(controller, set)| Some((controller, count(set?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: SyncFlags,
    }

    fn workers(args: &[&str]) -> Result<BTreeMap<&'static str, usize>, String> {
        let parsed = Program::try_parse_from([&["program"], args].concat());
        parsed.map(|program| program.flags.by_controller()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_controller_has_the_workers_that_its_flag_says_within_bounds() {
        assert_eq!(workers(&[]), Ok([("service", 1)].into()));
        let args = [
            "--concurrent-deployment-syncs=5",
            "--concurrent-gc-syncs=1000000",
            "--mirroring-concurrent-service-endpoint-syncs=1",
            "--concurrent-service-syncs=3",
        ];
        let expected = [
            ("deployment", 5),
            ("garbagecollector", 64),
            ("endpointslicemirroring", 1),
            ("service", 3),
        ];
        assert_eq!(workers(&args), Ok(expected.into()));
        for wrong in ["0", "-1", "x"] {
            let error = workers(&[&format!("--concurrent-rc-syncs={wrong}")]).expect_err(wrong);
            assert!(error.contains("--concurrent-rc-syncs"), "{error}");
        }
    }
}
