use std::os::unix::fs::MetadataExt as _;

use proto_daemon::mountinfo;

use super::*;

fn layout(table: &str, controllers: &str) -> Result<Layout, CgroupError> {
    // A foreign mount whose name is not UTF-8 does not hide others.
    let table = [b"20 1 0:9 / /mnt/\xff rw - ext4 \xff rw\n", table.as_bytes()].concat();
    let mounts = mountinfo::parse(&table);
    detect::from_mounts(mounts.iter(), |_| controllers.to_owned())
}

#[test]
fn hybrid_hosts_use_version_1() {
    let hybrid = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    let at = |name: &str| PathBuf::from("/sys/fs/cgroup").join(name);
    let expect = V1Trees {
        cpu: Some(at("cpu")),
        cpuacct: Some(at("cpuacct")),
        memory: Some(at("memory")),
        pids: None,
        hugetlb: None,
        others: vec![at("systemd"), at("unified")],
    };
    assert_eq!(layout(hybrid, "hugetlb").unwrap(), Layout::V1(expect));
}

#[test]
fn joint_controllers_share_a_tree() {
    let joint = "\
32 31 0:29 / /c/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /again/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /c/memory rw - cgroup cgroup rw,memory
";
    let Layout::V1(trees) = layout(joint, "").unwrap() else { panic!("not version 1") };
    assert_eq!(trees.cpu, Some("/c/cpu,cpuacct".into()));
    assert_eq!((&trees.cpu, trees.others.len()), (&trees.cpuacct, 0));
}

#[test]
fn trees_that_are_mounted_once_more_in_their_place_are_looked_at_once() {
    let twice = "\
32 31 0:29 / /c/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /c/memory rw - cgroup cgroup rw,memory
36 31 0:33 / /c/freezer rw - cgroup cgroup rw,freezer
52 51 0:33 / /c/freezer rw - cgroup cgroup rw,freezer
53 51 0:38 / /c/unified rw - cgroup2 cgroup2 rw
54 51 0:38 / /c/unified rw - cgroup2 cgroup2 rw
";
    let Layout::V1(trees) = layout(twice, "").unwrap() else { panic!("not version 1") };
    assert_eq!(trees.others, ["/c/freezer", "/c/unified"].map(PathBuf::from));
}

#[test]
fn unified_hosts_use_version_2() {
    let unified = "30 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
    let expect = Layout::V2 { mount: "/sys/fs/cgroup".into() };
    assert_eq!(layout(unified, "cpuset cpu io memory pids").unwrap(), expect);
    assert!(matches!(layout(unified, "hugetlb"), Err(CgroupError::NoTree)));
}

#[test]
fn places_stay_in_the_tree() {
    for (place, ok) in [
        ("/kubepods/pod1", true),
        ("/a.slice/b.slice", true),
        ("/", false),
        ("", false),
        ("a", false),
        ("/a/../b", false),
        ("/a/./b", false),
    ] {
        assert_eq!(check_place(place).is_ok(), ok, "{place}");
    }
}

/// Values written in cgroup v2, in a directory that looks like one.
#[test]
fn version_2_values() {
    let dir = tempfile::tempdir().unwrap();
    let cgroups = Cgroups::new(Layout::V2 { mount: dir.path().into() });
    std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
    let limits = CgroupLimits {
        cpu_shares: Some(1024),
        cpu_quota_us: Some(50_000),
        cpu_period_us: None,
        memory_bytes: Some(1 << 20),
        pids: Some(64),
        huge_pages: Some([(2 << 20, 4 << 20)].into()),
    };
    let pod = dir.path().join("kubepods/pod1");
    std::fs::create_dir_all(&pod).unwrap();
    for file in ["hugetlb.2MB.max", "hugetlb.1GB.max", "hugetlb.2MB.rsvd.max"] {
        std::fs::write(pod.join(file), "max").unwrap();
    }
    cgroups.make("/kubepods/pod1", &limits).unwrap();
    let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
    assert_eq!(read("cgroup.subtree_control"), "+cpu +memory +pids");
    assert_eq!(read("kubepods/cgroup.subtree_control"), "+cpu +memory +pids");
    assert_eq!(read("kubepods/pod1/cpu.weight"), "39");
    assert_eq!(read("kubepods/pod1/cpu.max"), "50000 100000");
    assert_eq!(read("kubepods/pod1/memory.max"), "1048576");
    assert_eq!(read("kubepods/pod1/pids.max"), "64");
    assert_eq!(read("kubepods/pod1/hugetlb.2MB.max"), "4194304");
    assert_eq!(read("kubepods/pod1/hugetlb.1GB.max"), "0");
    assert_eq!(read("kubepods/pod1/hugetlb.2MB.rsvd.max"), "max");
    cgroups.make("/kubepods/pod1", &CgroupLimits::default()).unwrap();
    assert_eq!(read("kubepods/pod1/cpu.max"), "max 100000");
    assert_eq!(read("kubepods/pod1/memory.max"), "1048576");
    assert!(cgroups.exists("/kubepods/pod1"));
    assert_eq!(cgroups.children("/kubepods"), ["pod1"]);
}

#[test]
fn statistics_are_found_by_their_whole_name() {
    let text = "inactive_file 7\ntotal_inactive_file 9\n";
    assert_eq!(statistic(text, "inactive_file"), 7);
    assert_eq!(statistic(text, "total_inactive_file"), 9);
    assert_eq!(statistic(text, "inactive"), 0);
}

/// The host's hierarchies: a cgroup is created, limited, used, and removed with the process in it.
#[test]
fn a_cgroup_is_created_limited_and_removed() {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let Some(cgroups) = Cgroups::detect().ok().filter(|_| root) else {
        eprintln!("SKIPPED a_cgroup_is_created_limited_and_removed: needs root and cgroups");
        return;
    };
    let top = format!("/agent-host-test-{}", std::process::id());
    let place = format!("{top}/pod1");
    let limits = CgroupLimits {
        cpu_shares: Some(512),
        cpu_quota_us: Some(20_000),
        cpu_period_us: Some(50_000),
        memory_bytes: Some(64 << 20),
        pids: Some(32),
        huge_pages: Some([(2 << 20, 4 << 20)].into()),
    };
    if let Err(error) = cgroups.make(&place, &limits) {
        eprintln!("SKIPPED a_cgroup_is_created_limited_and_removed: {error}");
        return;
    }
    cgroups.make(&place, &limits).unwrap();
    for (root, file) in cgroups
        .roots()
        .flat_map(|root| [(root, "hugetlb.2MB.max"), (root, "hugetlb.2MB.limit_in_bytes")])
    {
        if let Some(bound) = files::read_value(&below(root, &place).join(file)) {
            assert_eq!(bound, "4194304", "{file}");
        }
    }
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    for root in cgroups.roots() {
        let procs = below(root, &place).join("cgroup.procs");
        if procs.exists() {
            std::fs::write(procs, child.id().to_string()).unwrap();
        }
    }
    let usage = cgroups.usage(&place).unwrap();
    assert!(usage.working_set_bytes <= usage.memory_bytes, "{usage:?}");
    assert!(cgroups.exists(&place));

    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while cgroups.remove(&top).unwrap() == Removal::Busy {
        assert!(std::time::Instant::now() < deadline);
        let _ = child.try_wait();
        std::thread::yield_now();
    }
    assert!(!child.wait().unwrap().success());
    assert!(!cgroups.exists(&top));
    assert_eq!(cgroups.remove(&top).unwrap(), Removal::Gone);
}
