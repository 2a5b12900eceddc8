//! A pod with the fields of its specification, observed from inside its container; and pods that request what no node can provide.

use anyhow::{Result, ensure};

use crate::context::{Context, shown};
use crate::pods::{WAIT, pod};

/// The pod's own part of the manifest.
const SPEC: &str = r#"spec:
  hostname: myhost
  subdomain: sub
  setHostnameAsFQDN: true
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias, alias2]}]
  dnsPolicy: ClusterFirst
  dnsConfig: {nameservers: [192.0.2.9], searches: [my.dns], options: [{name: ndots, value: "2"}]}
  shareProcessNamespace: true
  enableServiceLinks: false
  securityContext:
    runAsUser: 1000
    runAsGroup: 1001
    runAsNonRoot: true
    supplementalGroups: [3000]
    fsGroup: 2000
    seccompProfile: {type: RuntimeDefault}
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "81"}]
"#;

/// Its container's.
const CONTAINER: &str = r#"    workingDir: /bin
    tty: true
    env: [{name: A, value: "1"}, {name: B, value: "$(A)2"}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    resources: {limits: {cpu: 200m, memory: 32Mi}, requests: {cpu: 100m, memory: 16Mi}}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
"#;

pub async fn a_container_finds_what_its_pod_says(c: &Context) -> Result<()> {
    let ns = c.namespace("fields").await?;
    c.apply(&(pod(&ns, "full", WAIT).replace("spec:\n", SPEC) + CONTAINER)).await?;
    let pod = c.pod_ready(&ns, "full").await?;
    let ip = &pod.status.pod_ip;
    let fqdn = format!("myhost.sub.{ns}.svc.cluster.local");
    let header = c.names.hosts_file_header();
    let cases: Vec<(&[&str], Vec<String>)> = vec![
        (&["/bin/id"], vec!["uid=1000 gid=1001 groups=1001,2000,3000".into()]),
        (
            &["/bin/cat", "/etc/hosts"],
            vec![
                format!("{header}.\n"),
                format!("{ip}\t{fqdn}\tmyhost\n"),
                "192.0.2.7\talias\talias2".into(),
            ],
        ),
        (
            &["/bin/cat", "/etc/resolv.conf"],
            vec![
                format!("search {ns}.svc.cluster.local svc.cluster.local cluster.local my.dns"),
                "nameserver 192.0.2.9".into(),
                "options ndots:2".into(),
            ],
        ),
        (&["/bin/cat", "/proc/sys/kernel/hostname"], vec![fqdn]),
        (&["/bin/cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"], vec!["81".into()]),
        (
            &["/bin/cat", "/proc/self/status"],
            vec![
                "NoNewPrivs:\t1".into(),
                "Seccomp:\t2".into(),
                "CapBnd:\t0000000000000400".into(),
                "CapEff:\t0000000000000000".into(),
            ],
        ),
        (&["/bin/cat", "/proc/self/mounts"], vec![" / overlay ro,".into()]),
        (&["/bin/env"], vec!["A=1".into(), "B=12".into(), format!("IP={ip}")]),
        // The pod's processes share a namespace, whose first is the sandbox's.
        (&["/bin/cat", "/proc/1/cmdline"], vec!["/pause".into()]),
    ];
    for (argv, expect) in cases {
        let said = c.read_in_container(&pod, argv).await?;
        for part in expect {
            ensure!(said.contains(&part), "{argv:?}: no {part:?} in {said}");
        }
    }
    ensure!(!c.read_in_container(&pod, &["/bin/env"]).await?.contains("_SERVICE_HOST=10.96.0.10"));
    c.discard(&ns).await
}

pub async fn what_no_node_can_give_is_refused_by_name(c: &Context) -> Result<()> {
    let ns = c.namespace("refused").await?;
    let apparmor = c.names.apparmor_annotation("main");
    let has_apparmor = std::path::Path::new("/sys/module/apparmor/parameters/enabled").exists();
    let spec = |text: &str| format!("spec:\n  {text}\n");
    let mut cases = vec![
        (
            "sysctl",
            spec("securityContext: {sysctls: [{name: kernel.msgmax, value: \"1\"}]}"),
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        ("other-os", spec("os: {name: windows}"), "PodOSNotSupported", "OS field"),
    ];
    if !has_apparmor {
        let annotated = format!("  annotations: {{{apparmor}: runtime/default}}\nspec:\n");
        cases.push(("apparmor", annotated, "AppArmor", "Cannot enforce AppArmor"));
    }
    for (name, spec, reason, message) in cases {
        c.apply(&pod(&ns, name, WAIT).replace("spec:\n", &spec)).await?;
        let failed = |pod: &proto_api::core::v1::Pod| match pod.status.phase.as_str() {
            "Failed" => Ok(()),
            _ => Err(shown(pod)),
        };
        let status = c.pod_until(&ns, name, failed).await?.status;
        ensure!(status.reason == reason, "{name}: {}", status.reason);
        ensure!(status.message.contains(message), "{name}: {}", status.message);
    }
    let root =
        pod(&ns, "root", WAIT).replace("spec:\n", &spec("securityContext: {runAsNonRoot: true}"));
    c.apply(&root).await?;
    c.pod_until(&ns, "root", |pod| {
        let line = shown(pod);
        let told = line.contains("CreateContainerConfigError")
            && line.contains("container has runAsNonRoot and image will run as root");
        if told { Ok(()) } else { Err(line) }
    })
    .await?;
    c.discard(&ns).await
}
