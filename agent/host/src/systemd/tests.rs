//! Tests with the real systemd if it runs here; systemctl shows the results.

use std::process::Command;

use super::*;
use crate::dbus::message::Message;
use crate::logind::SYSTEM_BUS;

#[test]
fn bounds_as_properties() {
    let limits = CgroupLimits {
        cpu_shares: Some(1024),
        cpu_quota_us: Some(25_500),
        memory_bytes: Some(64 << 20),
        pids: Some(100),
        ..CgroupLimits::default()
    };
    let expect = [
        ("CPUWeight", Value::Long(39)),
        ("CPUQuotaPerSecUSec", Value::Long(260_000)),
        ("CPUQuotaPeriodUSec", Value::Long(100_000)),
        ("MemoryMax", Value::Long(67_108_864)),
        ("TasksMax", Value::Long(100)),
    ];
    assert_eq!(properties(&limits), expect);
    assert!(properties(&CgroupLimits::default()).is_empty());
}

fn shown(slice: &str) -> String {
    let mut show = Command::new("systemctl");
    show.args(["show", slice, "-p", "LoadState,ActiveState,CPUWeight,CPUQuotaPerSecUSec"]);
    show.args(["-p", "MemoryMax,TasksMax,DefaultDependencies,Transient"]);
    let mut lines: Vec<String> = String::from_utf8(show.output().unwrap().stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines.join(" ")
}

#[tokio::test]
async fn a_slice_is_bounded_again_and_forgotten() {
    if !Path::new("/run/systemd/system").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a_slice_is_bounded_again_and_forgotten: systemd does not run here");
        return;
    }
    let systemd = Systemd::new(Path::new(SYSTEM_BUS));
    let slice = format!("orchtest{}.slice", std::process::id());
    let mut limits = CgroupLimits {
        cpu_shares: Some(1024),
        cpu_quota_us: Some(25_500),
        memory_bytes: Some(64 << 20),
        pids: Some(100),
        ..CgroupLimits::default()
    };
    systemd.set_limits(&slice, &limits).await.unwrap();
    // The call returns when the job is queued, not when it is done.
    let mut looks = 0;
    while !shown(&slice).contains("ActiveState=active") && looks < 2000 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        looks += 1;
    }
    let state = "LoadState=loaded";
    assert_eq!(
        shown(&slice),
        format!(
            "ActiveState=active CPUQuotaPerSecUSec=260ms CPUWeight=39 DefaultDependencies=no {state} \
             MemoryMax=67108864 TasksMax=100 Transient=yes"
        )
    );
    limits.memory_bytes = Some(128 << 20);
    systemd.set_limits(&slice, &limits).await.unwrap();
    assert!(shown(&slice).contains("MemoryMax=134217728"), "{}", shown(&slice));
    // A lost connection is reopened.
    *systemd.bus.lock().await = Some(broken().await);
    systemd.remove_slice(&slice).await.unwrap();
    systemd.remove_slice(&slice).await.unwrap();
    let mut looks = 0;
    while !shown(&slice).contains("ActiveState=inactive") && looks < 2000 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        looks += 1;
    }
    assert!(shown(&slice).contains("Transient=no"), "{}", shown(&slice));
    for place in ["transient", "system.control"] {
        let left = std::fs::read_dir(Path::new("/run/systemd").join(place));
        let names = left.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let own: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(&slice)).collect();
        assert!(own.is_empty(), "{own:?} in {place}");
    }
}

/// A connection that the bus closes, because it received an invalid message.
async fn broken() -> Bus {
    let mut bus = Bus::connect(Path::new(SYSTEM_BUS)).await.unwrap();
    let nonsense = Message { path: "no path".into(), ..Message::default() };
    bus.send_message(&nonsense, None).await.unwrap();
    bus
}

#[tokio::test]
async fn a_machine_without_a_system_bus_is_an_error() {
    let systemd = Systemd::new(Path::new("/nonexistent/bus"));
    let error = systemd.set_limits("x.slice", &CgroupLimits::default()).await.unwrap_err();
    assert!(matches!(error, BusError::Broken(_)), "{error:?}");
}
