//! systemd units of a cluster's programs, as texts.

use crate::arguments::Program;

/// What differs between units.
struct Kind {
    description: &'static str,
    after: &'static str,
    /// Modules of the kernel that nothing else loads, as systemd's units.
    modules: &'static [&'static str],
    settings: &'static [&'static str],
}

/// Settings of programs that need no more of the host than the network and their files.
const CONFINED: &[&str] = &[
    "NoNewPrivileges=yes",
    "ProtectSystem=full",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectProc=invisible",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelLogs=yes",
    "RestrictNamespaces=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    // root reads its own files only: no other capability.
    "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
    "UMask=0077",
    "LimitNOFILE=1048576",
];

/// The node agent mounts, makes cgroups and talks to the runtime: it is root with everything. What gives a unit a mount namespace of its own (Protect...,
/// Private...) would hide its mounts from the runtime, and a filter of system calls or a umask would be those of plugins and mount helpers too.
const AGENT: &[&str] = &[
    // The connection keeper, which keeps runtime calls open, has to outlive the agent.
    "KillMode=process",
    // Long enough for shutdownGracePeriod if logind does not delay the shutdown.
    "TimeoutStopSec=infinity",
    "Delegate=yes",
    "OOMScoreAdjust=-999",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "LimitNOFILE=1048576",
];

/// The proxy programs nf_tables, conntrack, routes and sysctls of the network.
const PROXY: &[&str] = &[
    "NoNewPrivileges=yes",
    "ProtectSystem=full",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelModules=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelLogs=yes",
    "RestrictNamespaces=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    // The last is for gratuitous ARP.
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK AF_PACKET",
    // The last is for a negative oom_score_adj.
    "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_SYS_RESOURCE",
    "LimitNOFILE=1048576",
];

/// The file name of a program's unit.
pub fn file_name(program: &str) -> String {
    format!("{program}.service")
}

fn kind(program: &str) -> Kind {
    let of = |description, after, settings| Kind { description, after, modules: &[], settings };
    match program {
        "orch-apiserver" => of("orch-apiserver, a Kubernetes API server", "", CONFINED),
        "orch-controller-manager" => of(
            "orch-controller-manager, the cluster's controllers",
            "orch-apiserver.service",
            CONFINED,
        ),
        "orch-scheduler" => {
            of("orch-scheduler, which assigns pods to nodes", "orch-apiserver.service", CONFINED)
        }
        "orch-proxy" => Kind {
            modules: &["modprobe@br_netfilter.service", "modprobe@nf_conntrack.service"],
            ..of("orch-proxy, Services of the cluster", "orch-apiserver.service", PROXY)
        },
        _ => of("orchlet, a kubelet", "containerd.service orch-apiserver.service", AGENT),
    }
}

/// The unit of a program of a cluster.
pub fn text(program: &Program) -> String {
    let command: Vec<String> = program.argv.iter().map(|word| quoted(word)).collect();
    let about =
        "# Written by orchadm, which writes it again at an upgrade: put changes into a drop-in.";
    unit(&program.name, about, &format!("ExecStart={}", command.join(" ")))
}

/// The unit of a program in a package, whose administrator writes its flags. systemd prefers that of a cluster, which lies in `/etc/systemd/system`.
pub fn packaged(name: &str) -> String {
    let about = "# Flags are those of /etc/default. orchadm writes a unit of this name to /etc/systemd/system, which takes the place of this one.";
    // Wrong flags do not get better by another start.
    let start = format!(
        "EnvironmentFile=-/etc/default/{name}\nExecStart=/usr/bin/{name} $FLAGS\nRestartPreventExitStatus={}",
        proto_daemon::exit::USAGE
    );
    unit(name, about, &start)
}

fn unit(name: &str, about: &str, start: &str) -> String {
    let kind = kind(name);
    let before = [&["network-online.target"], kind.modules].concat().join(" ");
    let after = format!("{before} {}", kind.after);
    format!(
        "{about}
[Unit]
Description={}
After={}
Wants={before}
StartLimitIntervalSec=0

[Service]
Type=notify
WatchdogSec=60
{start}
Restart=always
RestartSec=1
{}

[Install]
WantedBy=multi-user.target
",
        kind.description,
        after.trim_end(),
        kind.settings.join("\n"),
    )
}

/// A word of a command line (systemd.service(5), "Command lines").
fn quoted(word: &str) -> String {
    let escaped =
        word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%$*<>+".contains(c);
    if escaped.chars().all(is_plain) && !escaped.is_empty() {
        escaped
    } else {
        format!("\"{}\"", escaped.replace('\n', "\\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        for (word, expected) in [
            ("--a=b", "--a=b"),
            ("--controllers=*,x", "--controllers=*,x"),
            ("100%", "100%%"),
            ("$HOME", "$$HOME"),
            ("a b", "\"a b\""),
            ("a\"b\\", "\"a\\\"b\\\\\""),
            ("", "\"\""),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn the_agent_keeps_its_rights_and_the_others_lose_theirs() {
        let unit = |name: &str| {
            text(&Program { name: name.into(), argv: vec![format!("/usr/bin/{name}")] })
        };
        assert!(unit("orchlet").contains("KillMode=process\n"));
        assert!(unit("orchlet").contains("After=network-online.target containerd.service"));
        assert!(!unit("orchlet").contains("CapabilityBoundingSet"));
        assert!(unit("orch-apiserver").contains("After=network-online.target\n"));
        // Its mounts are the host's.
        for own in ["Protect", "Private", "SystemCallFilter", "UMask"] {
            assert!(!unit("orchlet").contains(own), "{own}");
        }
        assert!(unit("orch-proxy").contains("\nWants=network-online.target modprobe@br_netfilter"));
        assert!(unit("orch-proxy").contains("CapabilityBoundingSet=CAP_NET_ADMIN "));
        // It writes sysctls of the network.
        assert!(!unit("orch-proxy").contains("ProtectKernelTunables"));
        // A program whose event loop hangs is restarted.
        assert!(unit("orchlet").contains("Type=notify\nWatchdogSec=60\n"));
        for confined in ["orch-apiserver", "orch-scheduler", "orch-controller-manager"] {
            assert!(unit(confined).contains("CapabilityBoundingSet=CAP_NET_BIND_SERVICE\n"));
            assert!(unit(confined).contains(&format!("ExecStart=/usr/bin/{confined}\n")));
        }
    }

    #[test]
    fn a_packaged_unit_has_the_flags_of_its_host_and_the_same_rights() {
        let unit = packaged("orch-apiserver");
        assert!(unit.contains("ExecStart=/usr/bin/orch-apiserver $FLAGS\n"));
        assert!(unit.contains("EnvironmentFile=-/etc/default/orch-apiserver\n"));
        assert!(unit.contains("RestartPreventExitStatus=64\n"));
        let own = Program { name: "orch-apiserver".into(), argv: vec!["/usr/bin/a".into()] };
        let settings = |unit: &str| unit.split("RestartSec=1\n").nth(1).map(str::to_owned);
        assert_eq!(settings(&unit), settings(&text(&own)));
    }
}
